// How do the charts of a page look and move? Data comes from the JSON beside it; charts over time and over steps zoom together.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("chart-data").textContent);
  const clock = data.clock || {t: [], step: [], end: 0};
  const root = document.documentElement;
  const drawn = [];  // {plot, chart, holder}
  let view = null;  // [from, to] in seconds of the run; null: the whole

  const color = name => getComputedStyle(root).getPropertyValue("--" + name).trim();
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const figures = value => value == null ? "–" : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(3));

  function duration(seconds) {
    const s = Math.max(0, seconds), h = Math.floor(s / 3600), m = Math.floor(s % 3600 / 60), rest = s % 60;
    if (h) return `${h}h ${String(m).padStart(2, "0")}m` + (rest >= 1 ? ` ${String(Math.floor(rest)).padStart(2, "0")}s` : "");
    return m ? `${m}m ${String(Math.floor(rest)).padStart(2, "0")}s` : `${+rest.toFixed(rest < 10 ? 1 : 0)}s`;
  }

  // Piecewise linear between the logged steps, straight on outside of them.
  function between(from, to, value) {
    const n = from.length;
    if (n < 2) return value;
    let k = 1;
    while (k < n - 1 && from[k] < value) k++;
    return to[k - 1] + (value - from[k - 1]) * (to[k] - to[k - 1]) / (from[k] - from[k - 1] || 1);
  }
  const stepAt = (seconds, by = clock) => between(by.t, by.step, seconds);
  const timeAt = (step, by = clock) => between(by.step, by.t, step);

  const alone = chart => chart.axis === "value" || chart.axis === "hosts";  // does not zoom with the others
  const hosts = chart => [...new Set(chart.series.flatMap(series => series.x))].sort((a, b) => a - b);

  function whole(chart) {
    if (chart.axis === "time") return [0, (chart.clock || clock).end || 1];
    if (chart.axis === "hosts") {
      const counts = hosts(chart);
      return [counts[0] / 1.2, counts[counts.length - 1] * 1.2];
    }
    if (chart.axis === "step") return [0, Math.max(1, ...clock.step, ...chart.series.map(series => series.x[series.x.length - 1]))];
    const xs = chart.x || chart.series.flatMap(series => series.x);
    const pad = chart.axis === "value" ? (chart.width || 1) * .75 : 0;
    return [Math.min(...xs) - pad, Math.max(...xs) + pad || 1];
  }
  function shown(chart) {
    if (!view || alone(chart)) return whole(chart);
    const steps = view.map(seconds => stepAt(seconds));
    return chart.clock ? steps.map(step => timeAt(step, chart.clock)) : chart.axis === "time" ? view : steps;  // the same steps of another run
  }

  function zoom(range) {
    if (range) {
      const end = clock.end || 1, least = end / 2000;
      let [from, to] = range[0] < range[1] ? range : [range[1], range[0]];
      from = clamp(from, 0, end - least);
      to = clamp(to, from + least, end);
      view = to - from > .999 * end ? null : [from, to];
    } else view = null;
    for (const {plot, chart} of drawn) {
      const [min, max] = shown(chart);
      plot.setScale("x", {min, max});
    }
    document.getElementById("whole").hidden = !view;
    document.getElementById("range").textContent = view ? (clock.steps_only ? `steps ${view.map(t => Math.max(0, Math.round(stepAt(t)))).join(" to ")}` : view.map(duration).join(" to ")) : "";
  }

  function onKey(event) {
    const end = clock.end || 1, [from, to] = view || [0, end], span = to - from, middle = (from + to) / 2;
    const moved = shift => { const start = clamp(from + shift, 0, end - span); return [start, start + span]; };
    const zooms = {
      "+": () => [middle - span / 4, middle + span / 4], "=": () => [middle - span / 4, middle + span / 4],
      "-": () => [middle - span, middle + span],
      ArrowLeft: () => moved(-span / 4), ArrowRight: () => moved(span / 4), Escape: () => null, "0": () => null,
    };
    if (!zooms[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    zoom(zooms[event.key]());
  }

  function axes(chart) {
    const common = () => ({
      stroke: () => color("pale"), font: "12px system-ui, sans-serif",
      grid: {stroke: () => color("grid"), width: 1}, ticks: {stroke: () => color("grid"), width: 1, size: 5},
    });
    const x = {...common(), size: 30};
    if (chart.axis === "time") {
      x.values = (plot, marks) => marks.map(duration);
      x.incrs = [.1, .2, .5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
      x.space = 90;
    } else if (chart.axis === "hosts") {
      x.splits = () => hosts(chart);
      x.values = (plot, marks) => marks.map(mark => `${mark} host${mark > 1 ? "s" : ""}`);
    } else {
      x.values = (plot, marks) => marks.map(mark => mark.toLocaleString("en") + (chart.axis === "value" ? " " + chart.unit : ""));
      x.space = 70;
    }
    const y = {...common(), size: 68, values: (plot, marks) => marks.map(mark => mark == null ? "" : figures(mark) + (chart.unit && chart.type !== "bars" ? " " + chart.unit : ""))};
    if (chart.log) y.splits = (plot, k, low, high) => {
      const powers = Array.from({length: 40}, (_, k) => 10 ** (k - 20));
      return powers.flatMap(power => [1, 2, 5].map(n => +(n * power).toPrecision(3))).filter(mark => mark >= low && mark <= high);
    };
    if (chart.range) y.filter = (plot, marks) => marks;  // Less than a factor of ten needs more marks than its powers.
    if (chart.type === "heat") {
      y.grid.show = y.ticks.show = false;
      const every = Math.ceil(chart.rows.length / Math.max(1, (chart.height - 44) / 13));
      y.values = (plot, marks) => marks.map(mark => chart.rows[chart.rows.length - 1 - Math.floor(mark)]);
      y.splits = () => chart.rows.map((_, k) => chart.rows.length - 1 - k + .5).filter((_, k) => k % every === 0);
    }
    return [x, y];
  }

  const ramp = [[68, 1, 84], [72, 36, 117], [65, 68, 135], [53, 95, 141], [42, 120, 142], [33, 145, 140], [34, 168, 132], [68, 191, 112], [122, 209, 81], [189, 223, 38], [253, 231, 37]];
  function viridis(share) {
    const place = clamp(share, 0, 1) * (ramp.length - 1), low = Math.min(Math.floor(place), ramp.length - 2);
    return ramp[low].map((c, k) => Math.round(c + (place - low) * (ramp[low + 1][k] - c)));
  }

  // Means of the columns under each pixel: zoomed out, a mean says more than one column picked out of many.
  function heatPixels(chart, bytes, from, to, pixels) {
    const rows = chart.rows.length, image = new ImageData(pixels, rows);
    for (let x = 0; x < pixels; x++) {
      const first = Math.floor((from + (to - from) * x / pixels) / chart.width), last = Math.floor((from + (to - from) * (x + 1) / pixels) / chart.width);
      for (let row = 0; row < rows; row++) {
        let sum = 0, count = 0;
        for (let k = Math.max(0, first); k < Math.max(first + 1, last) && k < chart.columns; k++) {
          const value = bytes[row * chart.columns + k];
          if (value <= 200) { sum += value; count++; }
        }
        if (count) image.data.set([...viridis(sum / count / 200), 255], 4 * (row * pixels + x));
      }
    }
    return image;
  }

  function drawHeat(chart, bytes) {
    const canvas = document.createElement("canvas");
    return plot => {
      const {ctx, bbox} = plot, {min, max} = plot.scales.x, rows = chart.rows.length, height = bbox.height / rows;
      canvas.width = Math.round(bbox.width);
      canvas.height = rows;
      canvas.getContext("2d").putImageData(heatPixels(chart, bytes, min, max, canvas.width), 0, 0);
      ctx.save();
      ctx.fillStyle = color("none");
      ctx.fillRect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.imageSmoothingEnabled = false;
      ctx.drawImage(canvas, bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.fillStyle = color("paper");
      if (height >= 10 * devicePixelRatio) for (let k = 1; k < rows; k++) ctx.fillRect(bbox.left, Math.round(bbox.top + k * height) - 1, bbox.width, 1);
      ctx.restore();
    };
  }

  function drawMarks(chart) {
    return plot => {
      const {ctx, bbox} = plot;
      ctx.save();
      ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
      ctx.fillStyle = ctx.strokeStyle = color("ink");
      ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
      chart.marks.forEach(({x, label}, k) => {
        const at = plot.valToPos(x, "x", true);
        ctx.beginPath();
        ctx.moveTo(at, bbox.top);
        ctx.lineTo(at, bbox.top + bbox.height);
        ctx.stroke();
        const text = `${label} ${figures(x)} ${chart.unit}`, over = at + ctx.measureText(text).width + 8 > bbox.left + bbox.width;
        ctx.textAlign = over ? "right" : "left";
        ctx.fillText(text, at + (over ? -5 : 5) * devicePixelRatio, bbox.top + (14 + 16 * k) * devicePixelRatio);
      });
      ctx.restore();
    };
  }

  // A bar from low to high at each point, side by side, a ring around the knee, and the limit as a dashed line.
  function drawIntervals(chart) {
    return plot => {
      const {ctx, bbox} = plot, count = chart.series.length, y = value => plot.valToPos(value, "y", true);
      ctx.save();
      ctx.lineWidth = 1.5 * devicePixelRatio;
      chart.series.forEach((series, k) => {
        ctx.strokeStyle = color(series.color);
        series.x.forEach((hosts, point) => {
          const at = plot.valToPos(hosts, "x", true), bar = at + 5 * (k - (count - 1) / 2) * devicePixelRatio;
          ctx.beginPath();
          ctx.moveTo(bar, y(series.low[point]));
          ctx.lineTo(bar, y(series.high[point]));
          ctx.stroke();
          if (hosts !== series.knee) return;
          ctx.beginPath();
          ctx.arc(at, y(series.y[point]), 8 * devicePixelRatio, 0, 2 * Math.PI);
          ctx.stroke();
        });
      });
      if (chart.limit) {
        const at = y(chart.limit.y);
        ctx.strokeStyle = ctx.fillStyle = color("bad");
        ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
        ctx.beginPath();
        ctx.moveTo(bbox.left, at);
        ctx.lineTo(bbox.left + bbox.width, at);
        ctx.stroke();
        ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
        ctx.textAlign = "right";
        ctx.fillText(chart.limit.label, bbox.left + bbox.width, at - 5 * devicePixelRatio);
      }
      ctx.restore();
    };
  }

  function columns(chart) {
    if (chart.type === "heat") return [whole(chart), [0, 0]];
    if (chart.type === "bars") return [chart.x, chart.series[0].y];
    if (chart.type === "stack") return [chart.x, ...chart.series.map(series => series.y)];
    return uPlot.join(chart.series.map(series => [series.x, series.y]));
  }

  function containing(chart, at) {
    let k = chart.x.length - 1;
    while (k > 0 && chart.x[k] > at) k--;
    return at <= chart.ends[k] ? k : null;
  }

  function drawStack(chart) {
    return plot => {
      const {ctx, bbox} = plot, base = bbox.top + bbox.height, scale = bbox.height / chart.top;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      const colors = chart.series.map(series => color(series.color));
      chart.x.forEach((begin, k) => {
        const left = Math.round(plot.valToPos(begin, "x", true)), right = Math.max(left + 1, Math.round(plot.valToPos(chart.ends[k], "x", true)));
        if (right < bbox.left || left > bbox.left + bbox.width) return;
        let sum = 0;
        chart.series.forEach((series, s) => {
          if (!series.y[k]) return;
          const bottom = Math.round(base - sum * scale), top = Math.round(base - (sum += series.y[k]) * scale);
          ctx.fillStyle = colors[s];
          ctx.fillRect(left, top, right - left, bottom - top);
        });
      });
      ctx.restore();
    };
  }

  function seriesOf(chart) {
    const x = {label: {time: "time", step: "step", hosts: "hosts", value: chart.unit}[chart.axis],
      value: (plot, v, s, k) => k == null ? "" : v == null ? "–" : chart.axis === "time" ? `${duration(v)}, step ${Math.max(0, Math.round(stepAt(v, chart.clock)))}` : figures(v)};
    if (chart.type === "heat") return [x, {show: true, paths: () => null, points: {show: false}}];
    const list = chart.series.map(item => ({
      label: item.label, stroke: () => color(item.color), width: chart.type === "lines" ? 1.75 : .5, points: {show: false},
      value: (plot, v, s, k) => k == null ? "" : v == null ? "–" : figures(v) + (chart.unit && chart.type !== "bars" ? " " + chart.unit : ""),
    }));
    if (chart.type === "lines") list.forEach((s, k) => {
      s.spanGaps = true;
      s.points = {show: chart.points || chart.series[k].x.length < 3, size: 6, fill: () => color(chart.series[k].color)};
    });
    if (chart.type === "bars") Object.assign(list[0], {fill: () => color(chart.series[0].color), paths: uPlot.paths.bars({size: [.9, Infinity]})});
    if (chart.type === "stack") list.forEach(s => { s.paths = () => null; });
    return [x, ...list];
  }

  function scaleY(chart) {
    if (chart.type === "heat") return {range: [0, chart.rows.length]};
    if (chart.type === "stack") return {range: () => [0, chart.top]};
    if (chart.range) return {distr: 3, log: 10, range: chart.range};
    if (chart.log) return {distr: 3, log: 10, range: (plot, low, high) => low == null ? [.1, 1] : [low / 1.15, high * 1.15]};
    if (chart.type === "bars") return {range: (plot, low, high) => [0, high * 1.4 || 1]};
    return {range: (plot, low, high) => low == null ? [0, 1] : uPlot.rangeNum(low, high, {min: {pad: .1}, max: {pad: .1}})};
  }

  function draw(key, chart) {
    const holder = document.querySelector(`#${CSS.escape(key)} .plot`);
    if (!holder) return;
    const time = !alone(chart);
    const hooks = {};
    const cells = chart.type === "heat" ? Uint8Array.from(atob(chart.cells), c => c.charCodeAt(0)) : null;
    if (cells) hooks.draw = [drawHeat(chart, cells)];
    if (chart.type === "stack") hooks.drawAxes = [drawStack(chart)];
    if (chart.marks) hooks.draw = [drawMarks(chart)];
    if (chart.axis === "hosts") hooks.draw = [drawIntervals(chart)];
    if (time) hooks.setSelect = [plot => {
      if (plot.select.width < 4) return;
      const ends = [plot.select.left, plot.select.left + plot.select.width].map(at => plot.posToVal(at, "x"));
      plot.setSelect({left: 0, width: 0, top: 0, height: 0}, false);
      const steps = chart.clock ? ends.map(end => stepAt(end, chart.clock)) : ends;
      zoom(chart.axis === "time" && !chart.clock ? ends : steps.map(step => timeAt(step)));
    }];
    const options = {
      width: holder.clientWidth, height: chart.height, padding: [8, 26, 0, 0], hooks,
      legend: {show: chart.type !== "heat" && chart.type !== "bars", markers: {width: 0, fill: (plot, k) => plot.series[k]._fill?.() ?? plot.series[k].stroke?.() ?? "transparent"}},
      scales: {x: {time: false, range: () => shown(chart), ...(chart.axis === "hosts" ? {distr: 3, log: 2} : {})}, y: scaleY(chart)},
      axes: axes(chart), series: seriesOf(chart),
      cursor: {
        drag: {x: time, y: false, setScale: false}, points: {show: chart.type === "lines"}, y: chart.type !== "stack",
        ...(chart.type === "stack" ? {dataIdx: (plot, s, near, at) => containing(chart, at)} : {}),
        ...(time && !chart.clock ? {sync: {key: chart.axis}} : {}),  // a selection is synced too
        bind: {dblclick: () => () => { if (time) zoom(null); return null; }},
      },
    };
    if (chart.type === "heat") readout(holder, chart, cells, hooks);
    const plot = new uPlot(options, columns(chart), holder);
    if (holder.lastReadout) holder.append(holder.lastReadout);
    if (time) holder.addEventListener("keydown", onKey);
    drawn.push({plot, chart, holder});
  }

  function readout(holder, chart, cells, hooks) {
    const line = document.createElement("div");
    line.className = "readout";
    line.innerHTML = '<span class="at">drag to zoom, double click for the whole run</span><span class="ramp">0 <i></i> 100 %</span>';
    holder.lastReadout = line;
    const at = line.firstChild, usual = at.textContent;
    hooks.setCursor = [plot => {
      const {left, top} = plot.cursor;
      if (left == null || left < 0) { at.textContent = usual; return; }
      const seconds = plot.posToVal(left, "x"), column = clamp(Math.floor(seconds / chart.width), 0, chart.columns - 1);
      const row = clamp(Math.floor(top / (plot.bbox.height / devicePixelRatio) * chart.rows.length), 0, chart.rows.length - 1);
      const value = cells[row * chart.columns + column];
      at.textContent = `${duration(seconds)}, step ${Math.max(0, Math.round(stepAt(seconds, chart.clock)))}: ${chart.rows[row]} ${value > 200 ? "no reading" : value / 2 + " %"}`;
    }];
  }

  // The clipboard may be closed to a page of a disk: then the text is marked, for Ctrl+C.
  async function copy(button) {
    const text = button.dataset.copy, code = button.previousElementSibling;
    let said = "copied";
    try { await navigator.clipboard.writeText(text); } catch {
      getSelection().selectAllChildren(code);
      if (!document.execCommand("copy")) said = "Ctrl+C";
    }
    button.textContent = said;
    document.getElementById("said").textContent = said === "copied" ? `${text} is copied` : "the setting is marked: copy it with Ctrl+C";
    setTimeout(() => { button.textContent = "copy"; }, 2500);
  }
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", () => copy(button));
  }

  // A click on a function of a flame graph shows it over the whole width; its callers below keep the whole width too.
  function flame(graph, left, width) {
    for (const frame of graph.children) {
      const x = +frame.dataset.x, w = +frame.dataset.w, from = Math.max(0, (x - left) / width), to = Math.min(1, (x + w - left) / width);
      frame.classList.toggle("off", to - from < .001);
      frame.style.left = `${100 * from}%`;
      frame.style.width = `${100 * Math.max(0, to - from)}%`;
    }
  }
  for (const graph of document.querySelectorAll(".flame")) {
    graph.addEventListener("click", event => { const at = event.target.dataset; if (at.w) flame(graph, +at.x, +at.w); });
    graph.addEventListener("keydown", event => { if (event.key === "Escape" || event.key === "0") flame(graph, 0, 1); });
  }

  const themes = ["auto", "light", "dark"];
  function theme(name, keep) {
    root.dataset.theme = name;
    document.getElementById("theme").textContent = "theme: " + name;
    for (const {plot} of drawn) plot.redraw(false, true);
    document.querySelectorAll(".u-marker").forEach(mark => { if (mark.dataset.color) mark.style.background = color(mark.dataset.color); });
    if (keep) try { localStorage.setItem("segtrain-theme", name); } catch { /* a file may keep nothing */ }
  }
  const fit = width => drawn.forEach(({plot, chart, holder}) => plot.setSize({width: width || holder.clientWidth, height: chart.height}));

  for (const [key, chart] of Object.entries(data)) if (key !== "clock") draw(key, chart);
  for (const {holder, chart} of drawn) {  // legend marks follow the theme
    const marks = [...holder.querySelectorAll(".u-series .u-marker")], names = (chart.series || []).map(series => series.color);
    marks.slice(-names.length).forEach((mark, k) => { mark.dataset.color = names[k]; });
  }
  let kept = null;
  try { kept = localStorage.getItem("segtrain-theme"); } catch { /* likewise */ }
  theme(themes.includes(kept) ? kept : "auto");
  document.getElementById("theme").addEventListener("click", () => theme(themes[(themes.indexOf(root.dataset.theme) + 1) % 3], true));
  document.getElementById("whole").addEventListener("click", () => zoom(null));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(root.dataset.theme));
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => fit(), 80); });
  let before = "auto";  // paper is white, and narrower than a screen
  addEventListener("beforeprint", () => { before = root.dataset.theme; theme("light"); fit(690); });
  addEventListener("afterprint", () => { theme(before); fit(); });
})();
