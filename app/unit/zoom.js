// Reports the window that a visitor drags over a Plotly chart of the page, and the row of a cell that is clicked; a
// double click on a part asks for the whole.

const TRIES = 50, PAUSE_MS = 100;

function follow(plot, whole, report, row) {
  const drawn = [plot.layout.xaxis.range, plot.layout.yaxis.range].flat().map(Number);
  const span = [drawn[1] - drawn[0], drawn[3] - drawn[2]];
  const same = (now) => now.every((value, i) => Math.abs(value - drawn[i]) < 1e-3 * Math.abs(span[i >> 1]));
  const listen = (event, handler) => {
    if (plot.routesparse?.[event]) plot.removeListener(event, plot.routesparse[event]);
    (plot.routesparse ??= {})[event] = handler;
    plot.on(event, handler);
  };
  listen("plotly_relayout", (change) => {
    if (!Object.keys(change).some((name) => /^[xy]axis\.range/.test(name))) return;
    const now = [plot.layout.xaxis.range, plot.layout.yaxis.range].flat().map(Number);
    if (now.every(Number.isFinite) && !same(now)) report(now);
  });
  listen("plotly_click", (event) => {
    const cell = event.points.find((point) => Array.isArray(point.pointIndex));
    if (cell) row(cell.pointIndex[0]);
  });
  listen("plotly_doubleclick", () => { if (!whole) report([]); });
}

export default function ({ data, setTriggerValue }) {
  const attach = (left) => {
    const plot = document.querySelector(`.st-key-${data.chart} .js-plotly-plot`);
    if (plot?.on && plot.layout?.yaxis?.range) follow(
      plot, data.whole, (ranges) => setTriggerValue("window", ranges), (row) => setTriggerValue("row", row));
    else if (left) setTimeout(attach, PAUSE_MS, left - 1);
  };
  // The chart's new picture is drawn a moment after this runs.
  setTimeout(attach, PAUSE_MS, TRIES);
}
