"""Labels, features and splits of a lookalike: a neighbourhood is more informative than a node's own features."""

from __future__ import annotations

import numpy as np

LATENT = 8  # dimensions of a community's latent vector in the multi-label sets


def classes_and_features(
    community: np.ndarray,
    district: np.ndarray,
    *,
    num_classes: int,
    num_features: int,
    label_noise: float,
    signal: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Classes [n] and features [n, d].

    Most communities of a district share its class, the others draw one of their own, so a class spans many communities
    in many places. A node takes the class of its community, except for a share ``label_noise`` drawn from all classes,
    so no model can be much better than 1 - ``label_noise``. The features of a node are the mean vector of its class, of
    length ``signal``, plus unit noise.
    """
    prior = 1.0 / (1.0 + np.arange(num_classes)) ** 0.5  # large and small classes, as in real sets
    prior /= prior.sum()
    of_district = rng.choice(num_classes, int(district[-1]) + 1, p=prior)
    count = int(community[-1]) + 1
    home = np.zeros(count, dtype=np.int64)
    home[community] = district
    of_community = np.where(rng.random(count) < 0.7, of_district[home], rng.choice(num_classes, count, p=prior))
    sure = min(count, num_classes)  # every class has a community, however small the graph
    of_community[rng.choice(count, sure, replace=False)] = np.arange(sure)
    y = of_community[community]
    noisy = rng.random(y.size) < label_noise
    y[noisy] = rng.choice(num_classes, int(noisy.sum()), p=prior)
    means = rng.standard_normal((num_classes, num_features), dtype=np.float32)
    means *= signal / np.linalg.norm(means, axis=1, keepdims=True)
    x = rng.standard_normal((y.size, num_features), dtype=np.float32)
    x += means[y]
    return y, x


def labels_and_features(
    community: np.ndarray,
    *,
    num_labels: int,
    num_features: int,
    label_noise: float,
    signal: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """0/1 labels [n, C] and features [n, d] that generalise to graphs not seen in training.

    Every community has a latent vector z. Labels are thresholds of one linear map of z, features are another linear map
    plus unit noise. The maps are the same in all graphs, the communities are not.
    """
    count = int(community[-1]) + 1
    z = rng.standard_normal((count, LATENT), dtype=np.float32)
    to_label = rng.standard_normal((LATENT, num_labels), dtype=np.float32) / np.sqrt(LATENT)
    rarity = rng.normal(0.6, 0.4, num_labels)  # thresholds: about three labels in ten are 1
    y = (z @ to_label > rarity)[community]
    y ^= rng.random(y.shape, dtype=np.float32) < label_noise
    to_feature = rng.standard_normal((LATENT, num_features), dtype=np.float32)
    to_feature *= signal / np.sqrt(LATENT)
    x = rng.standard_normal((community.size, num_features), dtype=np.float32)
    x += (z @ to_feature)[community]
    return y.astype(np.float32), x


def split_nodes(n: int, shares: tuple[float, float, float], rng: np.random.Generator) -> np.ndarray:
    """0, 1 or 2 (train, val, test) for every node, at random, in these shares."""
    first, second = round(n * shares[0]), round(n * (shares[0] + shares[1]))
    split = np.full(n, 2, dtype=np.int8)
    split[:second] = 1
    split[:first] = 0
    return rng.permutation(split)


def split_worlds(world: np.ndarray, shares: tuple[float, float, float]) -> np.ndarray:
    """0, 1 or 2 for every node, the same for all nodes of a graph; the first graphs are for training."""
    count = int(world[-1]) + 1
    borders = np.round(np.cumsum(shares)[:2] * count)
    return np.searchsorted(borders, world, side="right").astype(np.int8)
