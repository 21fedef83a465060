"use strict";
// Everything from the run folder is written by textContent and setAttribute: nothing of it is parsed as HTML.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const methods = data.methods.map((m, index) => ({ ...m, index, shown: true }));
  const [EPOCH, SECONDS, LOSS, VAL, TEST] = [0, 1, 2, 3, 4];
  const unit = data.percent ? 100 : 1;
  const metric = data.percent ? `${data.metric} in %` : data.metric;
  let target = data.target === null ? null : Number((unit * data.target).toPrecision(4));
  const redraws = [];

  const add = (parent, tag, attributes = {}, text) => {
    const svg = tag === "svg" || parent?.namespaceURI === "http://www.w3.org/2000/svg";
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    parent?.append(node);
    return node;
  };
  const coloured = (node, m) => {
    node.classList.add("m");
    node.style.setProperty("--light", m.light);
    node.style.setProperty("--dark", m.dark);
    return node;
  };
  const named = (parent, m) => {
    const span = coloured(add(parent, "span", { class: "name" }), m);
    add(span, "span", { class: "swatch", "aria-hidden": "true" });
    add(span, "span", {}, m.name);
    return span;
  };
  const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
  const digits = (value, count) => (known(value) ? value.toLocaleString("en", { maximumFractionDigits: count, minimumFractionDigits: count }) : "–");
  const short = (value) => (!known(value) ? "–" : value === 0 ? "0" : Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5 ? value.toExponential(1) : String(Number(value.toPrecision(3))));
  const error = (value) => (known(value) && value < 1e-6 ? "exact" : short(value));
  const score = (value) => digits(known(value) ? unit * value : null, data.percent ? 2 : 4);
  const seconds = (value) => (known(value) ? `${digits(value, value < 100 ? 2 : 0)} s` : "–");
  const bytes = (value) => (!known(value) ? "–" : value >= 1e9 ? `${digits(value / 1e9, 2)} GB` : value >= 1e6 ? `${digits(value / 1e6, 1)} MB` : `${digits(value / 1e3, 1)} kB`);
  const better = (a, b) => (data.smaller ? a <= b : a >= b);
  const reached = (m) => (target === null ? null : m.curve.find((p) => known(p[TEST]) && better(unit * p[TEST], target)) ?? null);

  const section = (title, id) => {
    const part = add(document.getElementById("main"), "section", { "aria-labelledby": `h-${id}`, id });
    add(part, "h2", { id: `h-${id}` }, title);
    return part;
  };

  // ---- charts
  const ticks = (low, high, count) => {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((s) => s * power >= rough);
    const found = [];
    for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(Number(value.toPrecision(12)));
    return found;
  };
  const decades = (low, high) => {
    const found = [];
    const wide = Math.log10(high / low) > 2.2;
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1)
      for (const s of wide ? [1] : [1, 2, 5]) if (s * 10 ** power >= low && s * 10 ** power <= high) found.push(Number((s * 10 ** power).toPrecision(3)));
    return found;
  };
  const spread = (heights, step, low, high) => {
    // heights rise; every name keeps its distance, close to its own line
    const up = [...heights], down = [...heights];
    for (let k = 1; k < up.length; k += 1) {
      up[k] = Math.max(up[k], up[k - 1] + step);
      down[up.length - 1 - k] = Math.min(down[up.length - 1 - k], down[up.length - k] - step);
    }
    return up.map((u, k) => Math.min(Math.max((u + down[k]) / 2, low + step * k), high - step * (up.length - 1 - k)));
  };

  const chart = (parent, { title, caption, xlabel, series, log, trim, goal, value = short, thin = () => [] }) => {
    const figure = add(parent, "figure");
    const heading = add(figure, "h3", {}, title);
    add(figure, "figcaption", {}, caption);
    const plot = add(figure, "div", { class: "plot", tabindex: "0", role: "group", "aria-label": `${title}. Left and right arrow keys read the values.` });
    const tip = add(plot, "div", { class: "tip", hidden: "" });
    const live = add(figure, "div", { class: "hidden-live", "aria-live": "polite" });
    const box = { w: 560, h: 300, left: 50, right: 452, top: 10, bottom: 262 };
    let state = null;
    heading.id = `chart-${redraws.length}`;

    const draw = () => {
      plot.querySelector("svg")?.remove();
      tip.hidden = true;
      const svg = add(null, "svg", { viewBox: `0 0 ${box.w} ${box.h}`, role: "img", "aria-labelledby": heading.id });
      plot.prepend(svg);
      const lines = methods.filter((m) => m.shown).map((m) => ({ m, points: series(m).filter(([, y]) => known(y) && (!log || y > 0)) })).filter((l) => l.points.length);
      state = null;
      if (!lines.length) {
        add(svg, "text", { x: 250, y: 140, "text-anchor": "middle" }, "Nothing to show.");
        return;
      }
      const ys = lines.flatMap((l) => l.points.map((p) => p[1])).sort((a, b) => a - b);
      const xMax = Math.max(...lines.map((l) => l.points.at(-1)[0]));
      let [low, high] = [trim ? ys[Math.floor(ys.length / 12)] : ys[0], ys.at(-1)];
      if (log) [low, high] = [low / 1.25, high * 1.25];
      else {
        const margin = Math.max((high - low) * 0.06, Math.abs(high) * 1e-3, 1e-9);
        [low, high] = [low - margin, high + margin];
      }
      const f = log ? Math.log : (v) => v;
      const X = (x) => box.left + (x / (xMax || 1)) * (box.right - box.left);
      const Y = (y) => Math.min(box.bottom, box.bottom - ((f(y) - f(low)) / (f(high) - f(low))) * (box.bottom - box.top));
      for (const y of log ? decades(low, high) : ticks(low, high, 6)) {
        add(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: Y(y), y2: Y(y) });
        add(svg, "text", { x: box.left - 7, y: Y(y) + 4, "text-anchor": "end" }, short(y));
      }
      for (const x of ticks(0, xMax, 6)) add(svg, "text", { x: X(x), y: box.bottom + 17, "text-anchor": "middle" }, short(x));
      add(svg, "line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom });
      add(svg, "text", { x: (box.left + box.right) / 2, y: box.bottom + 34, "text-anchor": "middle" }, xlabel);
      const goals = goal?.();
      if (known(goals) && goals > low && goals < high) add(svg, "line", { class: "target", x1: box.left, x2: box.right, y1: Y(goals), y2: Y(goals) });
      for (const { m, points } of lines) {
        for (const [path, style] of [[thin(m), "curve thin"], [points, "curve"]]) {
          const some = path.filter(([, y]) => known(y) && y >= low);  // a curve begins where it enters the panel
          if (some.length > 1) coloured(add(svg, "polyline", { class: style, "data-method": m.index, points: some.map(([x, y]) => `${X(x).toFixed(1)},${Y(y).toFixed(1)}`).join(" "), "stroke-dasharray": m.dashes.length ? m.dashes.join(" ") : null }), m);
        }
        if (points.length === 1) coloured(add(svg, "circle", { class: "dot", r: 4, cx: X(points[0][0]), cy: Y(points[0][1]) }), m);
      }
      const ends = lines.map((l) => ({ m: l.m, x: X(l.points.at(-1)[0]), y: Y(l.points.at(-1)[1]) })).sort((a, b) => a.y - b.y);
      if (ends.length < 15) {
        const places = spread(ends.map((e) => e.y), 15, box.top + 2, box.bottom);
        ends.forEach((e, k) => {
          coloured(add(svg, "line", { class: "leader", x1: e.x + 2, y1: e.y, x2: box.right + 16, y2: places[k] }), e.m);
          add(svg, "text", { class: "label", x: box.right + 20, y: places[k] + 4 }, e.m.name.length > 15 ? `${e.m.name.slice(0, 14)}…` : e.m.name);
        });
      }
      const xs = [...new Set(lines.flatMap((l) => l.points.map((p) => p[0])))].sort((a, b) => a - b);
      state = { svg, lines, xs, X, Y, marks: add(svg, "g"), at: null };
    };

    const show = (at, spoken) => {
      if (!state) return;
      const { svg, lines, X, Y, marks, xs } = state;
      state.at = Math.max(0, Math.min(xs.length - 1, at));
      const x = xs[state.at];
      marks.replaceChildren();
      add(marks, "line", { class: "guide", x1: X(x), x2: X(x), y1: box.top, y2: box.bottom });
      const rows = [];
      for (const { m, points } of lines) {
        if (x > points.at(-1)[0] + 1e-9 || x < points[0][0] - 1e-9) continue;  // not beyond the ends of a curve
        const p = points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
        rows.push([m, p]);
        if (Y(p[1]) < box.bottom) coloured(add(marks, "circle", { class: "dot", r: 4, cx: X(p[0]), cy: Y(p[1]) }), m);
      }
      rows.sort((a, b) => b[1][1] - a[1][1]);
      tip.replaceChildren();
      add(tip, "strong", {}, `${xlabel === "epochs" ? "epoch" : "seconds"} ${short(x)}`);
      const table = add(tip, "table");
      for (const [m, p] of rows) {
        const row = add(table, "tr");
        named(add(row, "td"), m);
        add(row, "td", {}, value(p[1]));
      }
      tip.hidden = false;
      const scale = svg.clientWidth / box.w;
      const left = X(x) * scale;
      tip.style.left = left > svg.clientWidth / 2 ? "auto" : `${left + 14}px`;
      tip.style.right = left > svg.clientWidth / 2 ? `${svg.clientWidth - left + 14}px` : "auto";
      if (spoken) live.textContent = `${xlabel} ${short(x)}: ${rows.map(([m, p]) => `${m.name} ${value(p[1])}`).join(", ")}`;
    };
    const hide = () => {
      tip.hidden = true;
      state?.marks.replaceChildren();
    };
    plot.addEventListener("pointermove", (event) => {
      if (!state) return;
      const frame = state.svg.getBoundingClientRect();
      const x = ((event.clientX - frame.left) / frame.width) * box.w;
      const near = state.xs.reduce((best, value, k) => (Math.abs(state.X(value) - x) < Math.abs(state.X(state.xs[best]) - x) ? k : best), 0);
      show(near, false);
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 }[event.key];
      if (event.key === "Escape") hide();
      if (!step || !state) return;
      event.preventDefault();
      show((state.at ?? (step > 0 ? -1 : state.xs.length)) + step, true);
    });
    redraws.push(draw);
  };

  // ---- tables; a cell is a value to sort by and a text, or a function that fills the cell
  const grid = (parent, { caption, columns, rows, sortable, words }) => {
    const table = add(add(parent, "div", { class: words ? "scroll words" : "scroll", tabindex: "0", role: "region", "aria-label": caption }), "table");
    add(table, "caption", { class: "hidden-live" }, caption);
    const head = add(add(table, "thead"), "tr");
    const body = add(table, "tbody");
    let [by, rising] = [null, true];
    const fill = () => {
      const found = rows();
      const none = rising ? Infinity : -Infinity;
      const key = (row) => (typeof row.cells[by][0] === "string" ? row.cells[by][0] : known(row.cells[by][0]) ? row.cells[by][0] : none);
      if (by !== null) found.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (rising ? 1 : -1));
      body.replaceChildren();
      for (const row of found) {
        const line = add(body, "tr", { class: row.winner ? "winner" : null });
        row.cells.forEach(([, text, style], k) => {
          const cell = add(line, k ? "td" : "th", k ? { class: style ?? null } : { scope: "row" });
          if (typeof text === "function") text(cell);
          else cell.textContent = text;
        });
      }
    };
    const headers = () => {
      head.replaceChildren();
      columns().forEach((name, k) => {
        const cell = add(head, "th", { scope: "col", "aria-sort": k === by ? (rising ? "ascending" : "descending") : null });
        if (!sortable) return void (cell.textContent = name);
        add(cell, "button", { type: "button" }, name).addEventListener("click", () => {
          [by, rising] = by === k ? [by, !rising] : [k, true];
          headers();
          fill();
          head.children[k].firstChild.focus();
        });
      });
    };
    redraws.push(() => {
      headers();
      fill();
    });
  };
  const pairs = (parent, entries) => {
    const list = add(parent, "dl");
    for (const [name, value] of entries) {
      const row = add(list, "div");
      add(row, "dt", {}, name);
      add(row, "dd", {}, value);
    }
  };
  const redraw = () => redraws.forEach((one) => one());

  // ---- the top of the page
  const many = methods.length > 1;
  document.getElementById("kind").textContent = many ? `Comparison of ${methods.length} methods` : "Report of one run";
  for (const m of methods.filter((each) => each.state !== "finished")) {
    const why = m.state === "limited" ? "a limit of the run, such as patience, may have ended it" : "the run was interrupted or still trains";
    add(document.getElementById("notes"), "p", { class: "note" }, `${m.name} is unfinished: ${m.done} of ${m.wanted} epochs are recorded; ${why}.`);
  }
  const toggles = document.getElementById("toggles");
  toggles.hidden = !many;
  for (const m of methods) {
    const button = add(toggles, "button", { type: "button", "aria-pressed": "true", "data-method": m.index });
    named(button, m);
    button.addEventListener("click", () => {
      m.shown = !m.shown;
      button.setAttribute("aria-pressed", String(m.shown));
      headline();
      redraw();
    });
  }
  const headline = () => {
    const line = document.getElementById("headline");
    line.replaceChildren();
    const order = methods.filter((m) => m.shown).map((m) => [m, reached(m)]).filter(([, p]) => p).sort((a, b) => a[1][SECONDS] - b[1][SECONDS]);
    if (!order.length) return void (line.textContent = methods.some((m) => m.done) ? "" : "No epoch is recorded yet.");
    const say = ([m, p]) => `${seconds(p[SECONDS])} of training steps (epoch ${p[EPOCH]})`;
    add(line, "b", {}, order[0][0].name);
    const first = many ? " is the first to reach" : " reaches";
    line.append(`${first} a test score of ${target}${data.percent ? " %" : ""} (${data.metric}), after ${say(order[0])}.`);
    if (order.length > 1) line.append(` Next: ${order.slice(1, 3).map((o) => `${o[0].name} after ${seconds(o[1][SECONDS])}`).join(", ")}.`);
  };

  // ---- sections
  const scored = methods.some((m) => m.curve.some((p) => known(p[TEST])));
  const curves = section("Curves", "curves");
  const panels = add(curves, "div", { class: "charts" });
  const of = (m, x, y, factor = 1) => m.curve.filter((p) => known(p[y])).map((p) => [p[x], factor * p[y]]);
  for (const [x, xlabel, over] of [[SECONDS, "seconds of training steps", "time"], [EPOCH, "epochs", "epochs"]]) {
    if (scored) {
      chart(panels, {
        title: `Test ${metric} over ${over}`, caption: "thin: validation; dashed: the target", xlabel, trim: !data.smaller,
        series: (m) => of(m, x, TEST, unit), thin: (m) => of(m, x, VAL, unit), goal: () => target,
        value: (v) => digits(v, data.percent ? 2 : 4),
      });
    }
    const range = methods.flatMap((m) => m.curve.map((p) => p[LOSS])).filter((v) => known(v));
    const log = Math.min(...range) > 0 && Math.max(...range) / Math.min(...range) > 4;
    chart(panels, { title: `Training loss over ${over}`, caption: log ? "mean over the batches; logarithmic axis" : "mean over the batches", xlabel, log, series: (m) => of(m, x, LOSS), value: (v) => digits(v, 4) });
  }

  const final = section("Final table", "table");
  if (target !== null) {
    const ask = add(final, "p", { class: "ask" });
    add(ask, "label", { for: "target" }, `Test ${metric} to reach`);
    const input = add(ask, "input", { id: "target", type: "number", step: data.percent ? "0.1" : "any", value: target });
    input.addEventListener("input", () => {
      if (!known(input.valueAsNumber)) return;
      target = input.valueAsNumber;
      headline();
      redraw();
    });
  }
  const meanError = (m) => (m.exact ? 0 : m.errors.length ? m.errors.reduce((sum, e) => sum + (e[1] ?? NaN), 0) / m.errors.length : null);
  const biased = methods.some((m) => known(m.bias));
  grid(final, {
    caption: "Final values of every method", sortable: true,
    columns: () => ["method", "epochs", "training loss", "best epoch", `validation ${metric}`, `test ${metric}`, "seconds", "seconds an epoch", ...(target === null ? [] : [`seconds to ${target}${data.percent ? " %" : ""}`]), "gradient error", ...(biased ? ["bias"] : [])],
    rows: () => {
      const times = methods.map((m) => (m.shown && reached(m)?.[SECONDS]) || Infinity);
      return methods.filter((m) => m.shown).map((m) => ({
        winner: many && times[m.index] < Infinity && times[m.index] === Math.min(...times),
        cells: [
          [m.name.toLowerCase(), (cell) => named(cell, m)],
          [m.done, `${m.done}${m.done < m.wanted ? ` of ${m.wanted}` : ""}`],
          [m.loss, digits(m.loss, 4)],
          [m.best, m.best ?? "–"],
          [m.val, score(m.val)],
          [m.test, score(m.test)],
          [m.seconds, digits(m.seconds, 2)],
          [m.done ? m.seconds / m.done : null, digits(m.done ? m.seconds / m.done : null, 3)],
          ...(target === null ? [] : [[times[m.index], times[m.index] < Infinity ? digits(times[m.index], 2) : "never", times[m.index] === Math.min(...times) ? "best" : null]]),
          [meanError(m), error(meanError(m))],
          ...(biased ? [[m.exact ? 0 : m.bias, error(m.exact ? 0 : m.bias)]] : []),
        ],
      }));
    },
  });
  add(final, "p", { class: "soft" }, "Scores are those of the epoch with the best validation score. Seconds count training steps, without evaluation. The gradient error is relative, against the exact gradient of the same batch, a mean over measurements; “exact”: below 1e-6." + (biased ? " The bias is the relative error of the mean gradient of an epoch, against the full gradient." : ""));

  const errors = section("Gradient errors", "errors");
  const measured = methods.filter((m) => m.errors.length);
  if (!measured.length) add(errors, "p", { class: "soft" }, "Not measured. lmc compare measures them during training.");
  else {
    const row = add(errors, "div", { class: "charts" });
    chart(row, { title: "Relative error of the gradient over epochs", caption: "mean over parameters; logarithmic axis; values below 1e-6 are exact and not drawn", xlabel: "epochs", log: true, series: (m) => m.errors.map((e) => [e[0], e[1] >= 1e-6 ? e[1] : null]), value: error });
    const layers = [...new Set(measured.flatMap((m) => m.layers.map((l) => l[0])))];
    grid(row, {
      caption: "Gradient error by layer", columns: () => ["method", ...layers],
      rows: () => measured.filter((m) => m.shown).map((m) => ({ cells: [[m.name, (cell) => named(cell, m)], ...layers.map((l) => { const v = m.layers.find((p) => p[0] === l)?.[1]; return [v, error(v)]; })] })),
    });
  }

  const stale = section("Staleness of histories", "staleness");
  const kept = methods.filter((m) => m.stale.length);
  if (!kept.length) add(stale, "p", { class: "soft" }, "Not measured, or no method keeps histories. lmc compare measures it during training.");
  else {
    const row = add(stale, "div", { class: "charts" });
    for (const [k, what] of [[2, "stored states H"], [3, "stored adjoints V"]])
      if (kept.some((m) => m.errors.some((e) => known(e[k])))) chart(row, { title: `Distance of ${what} from exact values`, caption: "relative, mean over layers", xlabel: "epochs", series: (m) => m.errors.map((e) => [e[0], e[k]]) });
    const names = [...new Set(kept.flatMap((m) => m.stale.map((s) => s[0])))].sort();
    grid(row, {
      caption: "Staleness at the last measurement, by table and layer", columns: () => ["method", ...names],
      rows: () => kept.filter((m) => m.shown).map((m) => ({ cells: [[m.name, (cell) => named(cell, m)], ...names.map((n) => { const v = m.stale.find((p) => p[0] === n)?.[1]; return [v, error(v)]; })] })),
    });
  }

  const memory = section("Memory: plan and measurement", "memory");
  const sized = methods.filter((m) => m.memory.length);
  if (!sized.length) add(memory, "p", { class: "soft" }, "Not recorded. lmc train and lmc compare record it at the end of training.");
  else {
    const get = (m, name) => m.memory.find((p) => p[0] === name)?.[1] ?? null;
    const most = Math.max(...sized.flatMap((m) => m.memory.map((p) => p[1])));
    const columns = ["method", "planned", "measured", "plan / measured", "step, planned", "step, measured", "measured (bar) and planned (mark)"];
    grid(memory, {
      caption: "Memory on the training device", columns: () => columns,
      rows: () => sized.filter((m) => m.shown).map((m) => {
        const [plan, real] = [get(m, "planned"), get(m, "measured")];
        const bar = (cell) => {
          const meter = coloured(add(cell, "span", { class: "meter", "aria-hidden": "true" }), m);
          if (known(real)) add(meter, "i").style.width = `${(100 * real) / most}%`;
          if (known(plan)) add(meter, "b").style.left = `${(100 * plan) / most}%`;
        };
        return { cells: [[m.name, (cell) => named(cell, m)], [plan, bytes(plan)], [real, bytes(real)], [null, known(plan) && known(real) ? digits(plan / real, 2) : "–"], [null, bytes(get(m, "planned step"))], [null, bytes(get(m, "measured step"))], [null, bar]] };
      }),
    });
    add(memory, "p", { class: "soft" }, "Bytes on the training device at the peak of a step on a large batch: what is kept between steps, and the step itself.");
  }

  const division = section("Partition", "partition");
  const divided = methods.filter((m) => m.partition.length);
  if (!divided.length) add(division, "p", { class: "soft" }, "No method of this report divides the graph, or the folder does not record it.");
  else {
    const get = (m, name) => m.partition.find((p) => p[0] === name)?.[1] ?? null;
    const share = (value) => (known(value) ? `${digits(100 * value, 1)} %` : "–");
    grid(division, {
      caption: "Quality of the partition", columns: () => ["method", "parts", "parts in a batch", "steps an epoch", "edges inside parts", "edges cut", "largest part / mean", "halo / core of a part"],
      rows: () => divided.filter((m) => m.shown).map((m) => ({ cells: [[m.name, (cell) => named(cell, m)], ...["num_parts", "parts_per_batch", "steps"].map((n) => [get(m, n), digits(get(m, n), 0)]), ...["kept", "edge_cut"].map((n) => [get(m, n), share(get(m, n))]), ...["balance", "halo_ratio"].map((n) => [get(m, n), digits(get(m, n), 2)])] })),
    });
  }

  const settings = section("Settings", "settings");
  pairs(settings, data.shared);
  if (data.differing.length) {
    add(settings, "p", { class: "soft" }, "Settings that differ between the methods:");
    grid(settings, { caption: "Settings that differ", words: true, columns: () => ["setting", ...methods.map((m) => m.name)], rows: () => data.differing.map((row) => ({ cells: row.map((text) => [text, text, "text"]) })) });
  }
  const command = section("Command", "command");
  if (data.command) add(command, "pre", {}, data.command);
  else add(command, "p", { class: "soft" }, "Not recorded: the run was not started by the command line of lmc.");
  const environment = section("Environment", "environment");
  if (data.environment.length) pairs(environment, data.environment);
  else add(environment, "p", { class: "soft" }, "Not recorded.");

  headline();
  redraw();
})();
