// Bars, points, lines and pictures of cells on two axes, or on those of several panels (plot.py). The pointer, or the
// arrow keys, tell what an item is; a click or Enter picks it; over a picture a dragged box asks for that part, a double
// click for the whole.

const LETTER = 5.7, RIGHT = 12, TICKS = 22, TITLE = 16, NEAR = 14, DRAG = 5, FLAT = 20, AGAIN_MS = 280, NARROW = 480;
const CLIPPED = /cells|cover|line|whiskers/; // what may reach beyond the axes
const of = (value, i) => (Array.isArray(value) ? value[i] : value);
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function scale({ range, log }, from, to) {
  const at = log ? Math.log10 : (value) => value, [low, high] = range.map(at);
  const place = (value) => from + ((at(value) - low) / (high - low)) * (to - from);
  place.back = (pixel) => {
    const value = low + ((pixel - from) / (to - from)) * (high - low);
    return log ? 10 ** value : value;
  };
  return place;
}

// The panels' own geometries, beside each other; in a phone's window one below the other.
function geometries(data, width) {
  const panels = [data, ...(data.others ?? [])], stacked = width < NARROW, wide = stacked ? width : width / panels.length;
  return panels.map(({ x, y }, i) => {
    const [from, down] = stacked ? [0, i * data.height] : [i * wide, 0], end = down + data.height, most = Math.floor((wide * 0.45) / LETTER);
    const longest = Math.max(0, ...y.ticks.map(([, text]) => Math.min(most, text.length)));
    const left = from + 8 + (y.title ? 18 : 0) + longest * LETTER, right = from + wide - RIGHT;
    const top = down + data.top, bottom = end - TICKS - (x.title ? TITLE : 0);
    return { named: [], boxes: [], axes: { x, y }, ends: [from + wide, end], most, from, left, right, top, bottom, x: scale(x, left, right), y: scale(y, bottom, top) };
  });
}

function axes(data, g) {
  const { x: across, y: upright } = g.axes;
  let lines = "", texts = "";
  const taken = [], decade = ([value]) => across.log && Number.isInteger(Math.log10(value));
  // Where not all have room, powers of ten come first.
  for (const [value, text] of [...across.ticks].sort((one, other) => decade(other) - decade(one))) {
    const x = px(g.x(value)), half = (text.length * LETTER) / 2;
    if (across.grid) lines += `M${x} ${g.top}V${g.bottom}`;
    if (taken.some(([from, to]) => x - half < to + 6 && x + half > from - 6)) continue;
    taken.push([x - half, x + half]);
    texts += `<text x="${x}" y="${g.bottom + 15}" text-anchor="middle">${escape(text)}</text>`;
  }
  let end = Infinity;
  for (const [value, text] of [...upright.ticks].sort((one, other) => g.y(other[0]) - g.y(one[0]))) {
    const y = px(g.y(value));
    if (upright.grid) lines += `M${px(g.left)} ${y}H${g.right}`;
    if (y > end - 12) continue;
    end = y;
    texts += `<text x="${px(g.left - 6)}" y="${px(y + 3.8)}" text-anchor="end">${escape(cut(text, g.most))}<title>${escape(text)}</title></text>`;
  }
  const middle = px((g.left + g.right) / 2), half = px((g.top + g.bottom) / 2);
  return `<path d="${lines}" stroke="${data.line}"/><g fill="${data.mute}" font-size="11">${texts}</g>` +
    `<g fill="${data.mute}" font-size="12" text-anchor="middle"><text x="${middle}" y="${g.bottom + 32}">${escape(across.title)}</text>` +
    (upright.title ? `<text transform="translate(${px(g.from + 12)} ${half}) rotate(-90)">${escape(upright.title)}</text>` : "") + "</g>";
}

function outline(symbol, x, y, r) {
  if (symbol === "square") return `M${px(x - r)} ${px(y - r)}h${px(2 * r)}v${px(2 * r)}h${px(-2 * r)}z`;
  if (symbol === "diamond") return `M${px(x)} ${px(y - 1.3 * r)}l${px(1.3 * r)} ${px(1.3 * r)}l${px(-1.3 * r)} ${px(1.3 * r)}l${px(-1.3 * r)} ${px(-1.3 * r)}z`;
  if (symbol === "triangle-up") return `M${px(x)} ${px(y - 1.2 * r)}l${px(1.15 * r)} ${px(2 * r)}h${px(-2.3 * r)}z`;
  if (symbol === "hexagon") return `M${px(x - 1.1 * r)} ${px(y)}l${px(0.55 * r)} ${px(-r)}h${px(1.1 * r)}l${px(0.55 * r)} ${px(r)}l${px(-0.55 * r)} ${px(r)}h${px(-1.1 * r)}z`;
  return `M${px(x - r)} ${px(y)}a${px(r)} ${px(r)} 0 1 0 ${px(2 * r)} 0a${px(r)} ${px(r)} 0 1 0 ${px(-2 * r)} 0z`;
}

// A picture as a PNG of one pixel a cell; colors are numbered by the bytes, or by the square root of 16-bit shares.
function picture(mark) {
  const [rows, columns] = mark.shape, raw = bytes(mark.data), shares = mark.kind === "cells" && new Uint16Array(raw.buffer);
  const palette = mark.colors.map((color) => [1, 3, 5, 7].map((i) => parseInt(color.slice(i, i + 2) || "ff", 16)));
  const canvas = Object.assign(document.createElement("canvas"), { width: columns, height: rows });
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++)
    image.data.set(palette[shares ? Math.round(Math.sqrt(shares[i] / 65535) * 255) : raw[i]], 4 * i);
  context.putImageData(image, 0, 0);
  Object.assign(mark, { shares, raw });
  return canvas.toDataURL();
}

// Names beside points, those named first choose first: each where it covers no other name, no other point, nothing
// outside and, if it can, no line; one without such a place is left out.
const SIDES = [-7, 15, 4].flatMap((down) => [["start", 6], ["end", -6], ["middle", 0]].map(([anchor, dx]) => ({ anchor, dx, down })));

function names(mark, g, data) {
  const spot = (x, y) => [g.x(x), g.y(y)], spots = mark.x.map((x, i) => spot(x, mark.y[i]));
  const inked = mark.lines.flatMap((line) => line.slice(1).flatMap((to, i) => {
    const [[x0, y0], [x1, y1]] = [spot(...line[i]), spot(...to)], steps = 1 + Math.floor(Math.hypot(x1 - x0, y1 - y0) / 4);
    return Array.from({ length: steps + 1 }, (_, at) => [x0 + ((x1 - x0) * at) / steps, y0 + ((y1 - y0) * at) / steps]);
  }));
  const holds = ([left, right, top, bottom], [x, y], near = 0) => left - near < x && x < right + near && top - near < y && y < bottom + near;
  const meet = (one, other) => one[0] < other[1] && other[0] < one[1] && one[2] < other[3] && other[2] < one[3];
  return mark.texts.map((text, i) => {
    const [x, y] = spots[i], long = text.length * LETTER;
    const free = SIDES.slice(0, -1).map(({ anchor, dx, down }) => {
      const left = x + dx - { start: 0, middle: long / 2, end: long }[anchor];
      const box = [left, left + long, y + down - 11, y + down + 3];
      return { anchor, x: x + dx, y: y + down, box, cost: inked.filter((one) => holds(box, one)).length };
    }).filter(({ box }) => box[0] >= g.left && box[1] <= g.right + RIGHT && box[2] >= g.top - 3 && box[3] <= g.bottom &&
      !spots.some((one, at) => at !== i && holds(box, one, 5)) && !g.boxes.some((one) => meet(box, one)));
    const best = free.sort((one, other) => one.cost - other.cost)[0];
    if (!best) return "";
    g.boxes.push(best.box);
    return words_at(best.x, best.y, text, best.anchor, mark, data);
  }).join("");
}

const words_at = (x, y, text, anchor, mark, data) =>
  `<text x="${px(x)}" y="${px(y)}" text-anchor="${anchor}" font-size="11"${mark.strong ? ' font-weight="700"' : ""} ` +
  `fill="${mark.color}" stroke="${data.panel}" stroke-width="3" paint-order="stroke">${escape(text)}</text>`;

// One mark's SVG; its items, for the pointer and the keys, go to `items` with their places.
function draw(mark, at, data, g, items) {
  const ring = mark.ring ? ' class="ring"' : "";
  if (mark.kind === "label") {
    const x = g.x(mark.x) + mark.dx, y = g.y(mark.y) + mark.dy, long = mark.text.length * LETTER;
    const left = x - { start: 0, middle: long / 2, end: long }[mark.anchor];
    // The first of names that would stand in one another stays; a hover tells the others.
    if (g.named.some(([from, to, at]) => left < to && left + long > from && Math.abs(y - at) < 12)) return "";
    g.named.push([left, left + long, y]);
    return words_at(x, y, mark.text, mark.anchor, mark, data);
  }
  if (mark.kind === "names") return names(mark, g, data);
  if (mark.kind === "line") {
    const d = mark.x.map((x, i) => `${px(g.x(x))} ${px(g.y(mark.y[i]))}`).join("L");
    return d && `<path${ring} d="M${d}" fill="none" stroke="${mark.color}" stroke-width="${mark.width}" stroke-dasharray="${mark.dash || "none"}"/>`;
  }
  if (mark.kind === "whiskers") {
    const d = mark.at.map(([x0, y0, x1, y1]) => {
      const cap = x0 === x1 ? "m-4 0h8m-4 0" : "m0 -4v8m0 -4";
      return `M${px(g.x(x0))} ${px(g.y(y0))}${cap}L${px(g.x(x1))} ${px(g.y(y1))}${cap}`;
    }).join("");
    return `<path d="${d}" fill="none" stroke="${mark.color}" stroke-width="1.2"/>`;
  }
  if (mark.kind === "cells" || mark.kind === "cover") {
    const [x0, x1] = mark.box.slice(0, 2).map(g.x), [y0, y1] = mark.box.slice(2).map(g.y);
    // Fewer pixels than cells: smoothed, because a nearest one would leave whole columns out.
    const sharp = mark.shape[1] <= (x1 - x0) * devicePixelRatio ? "pixelated" : "auto";
    mark.image ??= picture(mark);
    return `<image href="${mark.image}" x="${px(x0)}" y="${px(y0)}" width="${px(x1 - x0)}" height="${px(y1 - y0)}" preserveAspectRatio="none" style="image-rendering:${sharp}"/>`;
  }
  let out = "";
  if (mark.kind === "bars") {
    mark.at.forEach(([left, right, bottom, top], i) => {
      const x = px(g.x(left)), y = px(g.y(top)), w = px(g.x(right) - g.x(left)), h = px(g.y(bottom) - g.y(top));
      out += `<path${ring} d="M${x} ${y}h${w}v${h}h${-w}z" fill="${of(mark.color, i)}"/>`;
      if (mark.hover) items.push({ mark: at, i, x: x + w / 2, y, box: [x, y, w, h] });
    });
    return out;
  }
  mark.x.forEach((value, i) => {
    const x = g.x(value), y = g.y(mark.y[i]), r = of(mark.size, i) / 2, letter = mark.letters?.[i];
    out += `<path class="point" d="${outline(mark.symbol, x, y, r)}" fill="${of(mark.color, i)}" stroke="${of(mark.edge, i) ?? "none"}" stroke-width="${of(mark.edge_width, i) ?? 1}"/>`;
    if (letter) out += `<text x="${px(x)}" y="${px(y + 3.6)}" fill="${of(mark.inks, i)}" stroke="none" font-size="10" text-anchor="middle">${escape(letter)}</text>`;
    if (mark.hover) items.push({ mark: at, i, x, y, box: [x - r, y - r, 2 * r, 2 * r] });
  });
  return `<g opacity="${mark.opacity ?? 1}">${out}</g>`;
}

function render(root, data) {
  const width = Math.floor(root.clientWidth), panels = geometries(data, width), items = [];
  const panel = (mark) => mark.panel ?? 0;
  const marks = data.marks.map((mark, at) => {
    const drawn = draw(mark, at, data, panels[panel(mark)], items);
    return CLIPPED.test(mark.kind) ? `<g clip-path="url(#${data.key}-area-${panel(mark)})">${drawn}</g>` : drawn;
  });
  const areas = panels.map((g, i) => `<clipPath id="${data.key}-area-${i}"><path d="M${g.left} ${g.top}H${g.right}V${g.bottom}H${g.left}z"/></clipPath>`);
  root.querySelector(".drawing").innerHTML =
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${Math.max(...panels.map((g) => g.ends[1]))}" font-family="${escape(data.font)}">` +
    [...panels.map((g) => axes(data, g)), ...areas, ...marks].join("") +
    `<rect class="ring at" fill="none" stroke="${data.ink}" stroke-width="2" visibility="hidden"/>` +
    `<rect class="ring drag" fill="${data.accent}" fill-opacity=".18" stroke="${data.accent}" visibility="hidden"/></svg>`;
  const order = (item) => panel(data.marks[item.mark]);
  Object.assign(root, { width, g: panels[0], order, ends: panels.map((g) => g.ends) });
  root.items = items.sort((one, other) => order(one) - order(other) || one.x - other.x || one.y - other.y);
  root.cells = data.marks.find((mark) => mark.kind === "cells");
  root.cover = data.marks.find((mark) => mark.kind === "cover");
}

// What screen readers call the chart, and how its marks are reached; the drawing itself would be read as loose numbers.
function name(root, data) {
  const marks = root.cells ? `${root.cells.shape.join(" by ")} cells` : `${root.items.length} marks`;
  const enter = root.cells ? ", Enter shows the words of a row" : data.picks ? ", Enter opens one" : "";
  const read = root.cells || root.items.length;
  root.setAttribute("role", read ? "application" : "img");
  root.setAttribute("aria-label", data.label + (read ? `: ${marks}; arrow keys read them${enter}` : ""));
  root.querySelector(".drawing").ariaHidden = "true";
}

// The cell of a picture at a row and column, as an item.
function cell(root, row, column) {
  const { box, shape: [rows, columns] } = root.cells, g = root.g;
  const wide = (box[1] - box[0]) / columns, high = (box[3] - box[2]) / rows;
  const middle = box[0] + (column + 0.5) * wide, y0 = g.y(box[2] + row * high), y1 = g.y(box[2] + (row + 1) * high);
  const x0 = g.x(box[0] + column * wide), x1 = g.x(box[0] + (column + 1) * wide);
  return { row, column, middle, x: (x0 + x1) / 2, y: y1, box: [x0, y0, x1 - x0, y1 - y0] };
}

// What lies at a point of the drawing: a picture's cell, else the nearest point, else the nearest bar of the column.
function under(root, x, y) {
  if (root.cells) {
    const { box, shape: [rows, columns] } = root.cells, g = root.g;
    const row = Math.floor(((g.y.back(y) - box[2]) / (box[3] - box[2])) * rows);
    const column = Math.floor(((g.x.back(x) - box[0]) / (box[1] - box[0])) * columns);
    return row >= 0 && row < rows && column >= 0 && column < columns ? cell(root, row, column) : null;
  }
  let found = null, least = Infinity;
  const here = root.ends.findIndex(([right, bottom]) => x < right && y < bottom);
  for (const item of root.items) {
    if (root.order(item) !== here) continue;
    const [left, top, w, h] = item.box, beside = Math.max(left - x, x - left - w, 0), over = Math.max(top - y, y - top - h, 0);
    const bar = root.kinds[item.mark] === "bars", far = Math.hypot(beside, over);
    if (bar ? beside > 0 : far > NEAR) continue;
    // Of two that hold the pointer, the one whose middle is nearer.
    const weight = far + Math.hypot(left + w / 2 - x, bar ? 0 : top + h / 2 - y) / 1000;
    if (weight <= least) [found, least] = [item, weight];
  }
  return found;
}

// What the picture above a cell says of it, on a line of its own.
function covered(root, { row, middle }) {
  if (!root.cover) return "";
  const { box, shape: [, columns], raw, names } = root.cover;
  const number = raw[row * columns + Math.floor(((middle - box[0]) / (box[1] - box[0])) * columns)];
  const name = number === undefined ? "" : names[Math.min(number, names.length - 1)];
  return name && `\n${name}`;
}

function words(root, data, item) {
  const [hover, told] = item.row === undefined
    ? [data.marks[item.mark].hover, data.marks[item.mark].told[item.i]]
    : [root.cells.hover, [root.cells.rows[item.row], Math.round(item.middle).toLocaleString("en-US"),
      ((root.cells.shares[item.row * root.cells.shape[1] + item.column] / 65535) * root.cells.peak).toFixed(4)]];
  return hover.replace(/\{(\d+)\}/g, (_, place) => told[place]) + (item.row === undefined ? "" : covered(root, item));
}

function hover(root, data, item, x, y) {
  root.classList.toggle("over", Boolean(item && data.picks));
  tell(root, item && words(root, data, item), x, y);
}

function frame(root, kind, box) {
  const mark = root.querySelector(`.ring.${kind}`);
  mark.setAttribute("visibility", box ? "visible" : "hidden");
  if (box) ["x", "y", "width", "height"].forEach((name, i) => mark.setAttribute(name, px(box[i])));
}

function ring(root, item) {
  const around = item && item.row === undefined ? 4 : 1;
  frame(root, "at", item && [item.box[0] - around, item.box[1] - around, item.box[2] + 2 * around, item.box[3] + 2 * around]);
}

// The item that an arrow key leads to; the first one from none.
function step(root, at, key) {
  const clip = (value, size) => Math.max(0, Math.min(size - 1, value));
  const [down, right] = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[key];
  if (!root.cells) return root.items[clip(root.items.indexOf(at) + down + right, root.items.length)];
  const [rows, columns] = root.cells.shape;
  return at ? cell(root, clip(at.row + down, rows), clip(at.column + right, columns)) : cell(root, 0, 0);
}

// Where the keys stood, in a drawing of the same chart with new data.
function again(root, { mark, i, row, column }) {
  if (row === undefined) return root.items.find((one) => one.mark === mark && one.i === i) ?? null;
  const [rows, columns] = root.cells?.shape ?? [0, 0];
  return row < rows && column < columns ? cell(root, row, column) : null;
}

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".rs-plot");
  root.kinds = data.marks.map((mark) => mark.kind);
  root.tabIndex = 0;
  root.classList.toggle("zooms", data.zooms);
  let at = null, start = null;
  const reach = (item) => {
    at = root.at = item;
    ring(root, at);
    hover(root, data, at, at?.x, at?.y);
  };
  const refresh = () => {
    if (!root.clientWidth) return;
    const before = root.at;
    render(root, data);
    name(root, data);
    reach(before ? again(root, before) : null);
  };
  refresh();
  const place = (event) => {
    const box = root.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const pick = (item, wait) => {
    clearTimeout(root.waiting);
    if (!item) return;
    if (item.row !== undefined) root.waiting = setTimeout(() => setTriggerValue("row", item.row), wait);
    else if (data.picks) setTriggerValue("picked", [item.mark, item.i]);
  };
  const within = ([x, y]) => [Math.max(root.g.left, Math.min(x, root.g.right)), Math.max(root.g.top, Math.min(y, root.g.bottom))];
  const dragged = (end) => {
    const [[x0, y0], [x1, y1]] = [within(start), within(end)], { left, right, top, bottom } = root.g;
    const w = Math.abs(x1 - x0), h = Math.abs(y1 - y0);
    // A flat or narrow drag asks for a part of one axis.
    if (h < Math.min(FLAT, 0.6 * w)) return [Math.min(x0, x1), top, w, bottom - top];
    if (w < Math.min(FLAT, 0.6 * h)) return [left, Math.min(y0, y1), right - left, h];
    return [Math.min(x0, x1), Math.min(y0, y1), w, h];
  };
  root.onpointermove = (event) => {
    const here = place(event);
    if (start && data.zooms) frame(root, "drag", dragged(here));
    hover(root, data, under(root, ...here), ...here);
  };
  root.onpointerleave = () => { if (!start) hover(root, data, null); };
  root.onpointerdown = (event) => {
    if (event.button) return;
    start = place(event);
    root.setPointerCapture(event.pointerId);
  };
  root.onpointercancel = () => { start = null; frame(root, "drag", null); };
  root.onpointerup = (event) => {
    if (!start) return;
    const here = place(event), [x, y, w, h] = dragged(here), { x: across, y: upright } = root.g;
    const moved = Math.hypot(here[0] - start[0], here[1] - start[1]) > DRAG;
    start = null;
    frame(root, "drag", null);
    if (!moved) pick(under(root, ...here), AGAIN_MS); // a double click is no choice of a row
    else if (data.zooms && w && h)
      setTriggerValue("window", [across.back(x), across.back(x + w), upright.back(y), upright.back(y + h)]);
  };
  root.ondblclick = () => {
    clearTimeout(root.waiting);
    if (data.zooms) setTriggerValue("window", []);
  };
  root.onblur = () => reach(null);
  root.onkeydown = (event) => {
    if (event.key === "Enter" && at) return pick(at, 0);
    // With Shift they move to another head.
    if (!/^Arrow/.test(event.key) || event.shiftKey || (!root.cells && !root.items.length)) return;
    event.preventDefault();
    reach(step(root, at, event.key));
    root.querySelector(".rs-said").textContent = words(root, data, at);
  };
  root.watch?.disconnect();
  root.watch = new ResizeObserver(() => { if (Math.floor(root.clientWidth) !== root.width) refresh(); });
  root.watch.observe(root);
}
