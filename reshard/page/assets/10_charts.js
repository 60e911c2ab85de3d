// Link loads as bars and histograms, with the floor as a line.

const MARGIN = { left: 66, right: 12, top: 22, bottom: 34 };

/** Returns round numbers from 0 to a little above a value. */
function ticksTo(most, isBytes) {
  if (!(most > 0)) return [0, 1];
  const unit = isBytes ? 1024 ** Math.floor(Math.log(most) / Math.log(1024)) : 1;
  const rough = most / unit / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const ticks = [];
  for (let at = 0; at < most + step; at += step) ticks.push(at);
  return ticks;
}

/** Returns an empty chart with its axis; bottom is where bars stand. */
function makeChart(width, height, most, format, label) {
  const ticks = ticksTo(most, format === formatBytes);
  const top = ticks.at(-1);
  const bottom = height - MARGIN.bottom;
  const y = (value) => bottom - ((bottom - MARGIN.top) * value) / top;
  const chart = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    class: "chart", "aria-label": label });
  for (const tick of ticks) {
    chart.append(
      draw("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick),
        class: "grid-line" }),
      draw("text", { x: MARGIN.left - 8, y: y(tick), class: "tick end" }, format(tick)));
  }
  return { chart, y, bottom, inner: width - MARGIN.left - MARGIN.right };
}

function floorLine({ chart, y }, width, seconds, name) {
  const at = y(seconds);
  chart.append(
    draw("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at,
      class: "floor-line" }),
    draw("text", { x: width - MARGIN.right, y: at - 6, class: "floor-name" }, name));
}

/** Returns neighbours joined, the largest value of each, where bars would be too thin. */
function binned(rows, most) {
  const per = Math.ceil(rows.length / most);
  if (per < 2) return rows;
  const bins = [];
  for (let at = 0; at < rows.length; at += per) {
    const part = rows.slice(at, at + per);
    bins.push({ name: `${part[0].name} to ${part.at(-1).name}`,
      values: part[0].values.map((_, i) => Math.max(...part.map(({ values }) => values[i]))) });
  }
  return bins;
}

/** Returns pairs of bars; rows are {name, values}, series {name, className}. */
function barChart(width, { rows, series, format, label, axis, floor }) {
  const height = 230;
  const bars = binned(rows, Math.floor((width - 80) / 5));
  const most = Math.max(floor?.seconds || 0, ...bars.flatMap(({ values }) => values));
  const made = makeChart(width, height, most, format, label);
  const { chart, y, bottom, inner } = made;
  const slot = inner / Math.max(1, bars.length);
  const thick = Math.min(34, Math.max(1, (slot * 0.8) / series.length));
  const every = Math.ceil((bars.length * 40) / inner);
  bars.forEach(({ name, values }, at) => {
    const centre = MARGIN.left + slot * (at + 0.5);
    values.forEach((value, i) => {
      const x = centre + (i - series.length / 2) * thick;
      chart.append(draw("rect", { x, y: y(value), width: thick * 0.92,
        height: Math.max(0, bottom - y(value)), class: series[i].className },
        draw("title", {}, `${name}: ${format(value)} ${series[i].name}`)));
    });
    if (at % every === 0) {
      chart.append(draw("text", { x: centre, y: bottom + 14, class: "tick middle" },
        name.replace(/^[a-z]+ /, "").split(" ")[0]));
    }
  });
  chart.append(draw("text", { x: MARGIN.left + inner / 2, y: height - 3, class: "axis" }, axis));
  if (floor) floorLine(made, width, floor.seconds, floor.name);
  return chart;
}

/** Returns how many ranks have how many bytes. */
function histogram(width, { values, label, axis, className }) {
  const height = 190;
  const most = Math.max(...values, 1);
  const numBins = Math.min(24, Math.max(8, Math.floor(width / 34)));
  const counts = new Array(numBins).fill(0);
  for (const value of values) counts[Math.min(numBins - 1, Math.floor((numBins * value) / most))]++;
  const tallest = Math.max(...counts);
  const made = makeChart(width, height, tallest, shortNumber, label);
  const { chart, y, bottom, inner } = made;
  const slot = inner / numBins;
  counts.forEach((count, bin) => {
    const from = formatBytes((most * bin) / numBins);
    const to = formatBytes((most * (bin + 1)) / numBins);
    chart.append(draw("rect", { x: MARGIN.left + slot * bin + 1, y: y(count), width: slot - 2,
      height: bottom - y(count), class: className },
      draw("title", {}, `${count} ranks: ${from} to ${to}`)));
  });
  for (const share of width < 500 ? [0, 1] : [0, 0.25, 0.5, 0.75, 1]) {
    const edge = share === 0 ? "start" : share === 1 ? "stop" : "middle";
    chart.append(draw("text", { x: MARGIN.left + inner * share, y: bottom + 14,
      class: `tick ${edge}` }, formatBytes(most * share)));
  }
  chart.append(draw("text", { x: MARGIN.left + inner / 2, y: height - 3, class: "axis" }, axis));
  return chart;
}

/** Returns a figure that draws itself again when its width changes. */
function figure(title, legend, render, table) {
  const canvas = make("div", { class: "canvas" });
  onWidth(canvas, (width) => canvas.replaceChildren(render(width)));
  const keys = legend.map(({ name, className }) =>
    make("span", { class: "key" }, className && make("i", { class: className }), name));
  return make("figure", {}, make("figcaption", {}, make("b", {}, title), " ", keys), canvas, table);
}
