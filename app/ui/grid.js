// Cells of a comparison: a colour and a text each, a hover with all of it. A click, or Enter on the ringed cell that the
// arrow keys move, picks a cell.

const TOP = 34, GAP = 2, LETTER = 6.2, SIGNS = /^[▲╱]/; // alarm, dropped

// The first line, and "22.4 %" as "22 %", for a narrow cell; never 0 or 100 % for what is only near.
const brief = (text) => text.split("\n")[0].replace(/^(▲?)([\d.]+)( ?%)$/, (_, mark, value, unit) => {
  const whole = Math.min(Math.round(value), value < 100 ? 99 : 100);
  return mark + (whole || Number(value) === 0 ? whole : "<1") + unit;
});

const longest = (texts) => Math.max(...texts.flatMap((text) => text.split("\n")).map((line) => line.length));

// A text of one line, or of several with the first one strong, around a middle.
function lines(text, x, y, size, look) {
  const all = text.split("\n"), high = size * 1.36, first = y - ((all.length - 1) * high) / 2 + size * 0.36;
  return `<text${look}>${all.map((line, i) => `<tspan x="${px(x)}" y="${px(first + i * high)}"${all.length > 1 && !i ? ' font-weight="650"' : ""}>${escape(line)}</tspan>`).join("")}</text>`;
}

// Labels, each line cut to what leaves the cells half of the width.
const fitting = (labels, most) => labels.map((label) => label.split("\n")
  .map((line) => (line.length > most ? `${line.slice(0, most - 1)}…` : line)).join("\n"));

function draw(root, { row_labels, column_labels, ...data }) {
  const [rows, columns] = data.shape, width = Math.floor(root.clientWidth), most = Math.max(2, Math.floor(width / 2 / LETTER));
  Object.assign(data, { row_labels: fitting(row_labels, most), column_labels: fitting(column_labels, most) });
  const left = longest(data.row_labels) * LETTER + (data.row_title ? 26 : 10);
  const cell = Math.max(data.cell_px, (width - left) / columns), row = data.row_px, gap = Math.min(cell, row) < 20 ? 1 : GAP;
  const across = Math.max(width, Math.ceil(left + cell * columns)); // wider than the page: it scrolls, its labels stay
  root.g = { left, cell, row, rows, columns, width };
  const every = (size) => Math.ceil(14 / size);
  let names = "", side = `<text x="${px((left + width) / 2)}" y="11" text-anchor="middle">${escape(data.column_title)}</text>` +
    (across > width ? `<rect width="${px(left)}" height="100%" fill="${data.panel}"/>` : "") +
    (data.row_title ? `<text transform="translate(11 ${px(TOP + (row * rows) / 2)}) rotate(-90)" text-anchor="middle">${escape(data.row_title)}</text>` : "");
  const wide = Math.max(...data.column_labels.map((label) => label.length)) * LETTER + 4;
  for (let j = 0; j < columns; j += Math.ceil(wide / cell)) names += `<text x="${px(left + cell * (j + 0.5))}" y="${TOP - 7}" text-anchor="middle">${escape(data.column_labels[j])}</text>`;
  for (let i = 0; i < rows; i += every(row)) side += lines(data.row_labels[i], left - 6, TOP + row * (i + 0.5) - gap / 2, 11, ' text-anchor="end"');
  let grounds = `<rect x="${px(left)}" y="${TOP}" width="${px(cell * columns - gap)}" height="${px(row * rows - gap)}" fill="${data.null}"/>`, texts = "";
  const size = row >= 28 ? 11 : 9;
  for (const [i, j, color, text, strong, , framed] of data.cells) {
    const x = left + cell * j, y = TOP + row * i, [ground, ink] = data.palette[color];
    const frame = framed ? ` stroke="${data.ink}" stroke-width="1.6"` : "";
    grounds += `<rect x="${px(x)}" y="${px(y)}" width="${px(cell - gap)}" height="${px(row - gap)}" fill="${ground}"${frame}/>`;
    const sign = SIGNS.test(text) || text.includes("\n") ? text[0] : "";
    const shown = [text, brief(text)].find((one) => longest([one]) * size * (one.includes("\n") ? 0.5 : 0.6) <= cell) ?? sign;
    const look = ` fill="${ink}"${strong ? ' font-weight="700"' : ""}`;
    if (shown) texts += lines(shown, x + (cell - gap) / 2, y + (row - gap) / 2, size, look);
  }
  const drawing = root.querySelector(".drawing"), was = drawing.querySelector("svg") && drawing.scrollLeft;
  drawing.innerHTML =
    `<svg xmlns="http://www.w3.org/2000/svg" width="${across}" height="${TOP + row * rows + 4}" font-family="${escape(data.font)}">` +
    `<g font-size="11" fill="${data.mute}">${names}</g>${grounds}<g font-size="${size}" text-anchor="middle">${texts}</g>` +
    `<rect class="ring" fill="none" stroke="${data.ink}" stroke-width="2.2" rx="2" visibility="hidden"/>` +
    `<g class="side" font-size="11" fill="${data.mute}">${side}</g></svg>`;
  drawing.onscroll = () => drawing.querySelector(".side").setAttribute("transform", `translate(${drawing.scrollLeft} 0)`);
  drawing.scrollLeft = was ?? across;
  drawing.onscroll();
}

function ring(root, at) {
  const { left, cell, row } = root.g, mark = root.querySelector(".ring");
  mark.setAttribute("visibility", at ? "visible" : "hidden");
  if (!at) return;
  const place = { x: left + at[1] * cell, y: TOP + at[0] * row, width: cell - 1, height: row - 1 };
  for (const [name, value] of Object.entries(place)) mark.setAttribute(name, px(value));
}

// What a cell is, beside a point of the drawing; nothing for a place without a cell.
const hover = (root, at, x, y) => tell(root, at && root.told.get(at.join()), x, y);

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".rs-grid");
  root.told = new Map(data.cells.map(([i, j, , , , hover]) => [`${i},${j}`, hover]));
  root.tabIndex = 0;
  root.setAttribute("role", "application");
  root.setAttribute("aria-label", `${data.label}: ${data.shape.join(" by ")} cells; arrow keys read them${data.picks ? ", Enter opens one" : ""}`);
  root.querySelector(".drawing").ariaHidden = "true"; // it would be read as loose numbers
  root.classList.toggle("picks", data.picks);
  let at = null;
  const refresh = () => { if (root.clientWidth) { draw(root, data); ring(root, at); } };
  refresh();
  const pick = (place) => { if (data.picks && root.told.has(place.join())) setTriggerValue("picked", place); };
  const under = (event) => {
    const box = root.querySelector("svg").getBoundingClientRect(), { left, cell, row } = root.g;
    const beside = event.clientX < root.querySelector(".drawing").getBoundingClientRect().left + left; // on the labels
    return [Math.floor((event.clientY - box.top - TOP) / row), beside ? -1 : Math.floor((event.clientX - box.left - left) / cell)];
  };
  root.onmousemove = (event) => {
    const frame = root.getBoundingClientRect();
    hover(root, under(event), event.clientX - frame.left, event.clientY - frame.top);
  };
  root.onmouseleave = () => hover(root, null);
  root.onblur = () => { at = null; ring(root, at); hover(root, null); };
  root.onclick = (event) => pick(under(event));
  root.onkeydown = (event) => {
    if (event.key === "Enter" && at) return pick(at);
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const { left, cell, row, rows, columns } = root.g, clip = (value, size) => Math.max(0, Math.min(size - 1, value));
    at = at ? [clip(at[0] + step[0], rows), clip(at[1] + step[1], columns)] : [0, 0];
    ring(root, at);
    const drawing = root.querySelector(".drawing"), x = at[1] * cell; // of the cell, right of the labels
    drawing.scrollLeft = Math.max(x + cell + left - drawing.clientWidth, Math.min(drawing.scrollLeft, x));
    hover(root, at, left + x + cell / 2 - drawing.scrollLeft, TOP + (at[0] + 0.5) * row);
    root.querySelector(".rs-said").textContent = root.told.get(at.join())
      ?? `${data.row_labels[at[0]]}, ${data.column_labels[at[1]]}: no value`;
  };
  root.watch?.disconnect();
  root.watch = new ResizeObserver(refresh);
  root.watch.observe(root);
}
