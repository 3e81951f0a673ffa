// Layer x head grid: colour and a slash say who reads a passage; a click or the arrow keys pick a head.

const LEFT = 26, TOP = 30, EMPTY = 255;
const px = (value) => Math.round(value * 10) / 10;
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const escape = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

function draw(root, data) {
  const width = Math.floor(root.clientWidth), [layers, heads] = data.shape, values = bytes(data.values);
  const cell = (width - LEFT) / heads, row = Math.min(30, Math.max(9, 460 / layers));
  Object.assign(root, { g: { cell, row, layers, heads, width }, values });
  let out = "", marks = "", texts = '<text x="0" y="11">layer ↓, head →</text>';
  const every = Math.ceil(14 / Math.min(cell, row));
  for (let i = 0; i < heads; i += every) texts += `<text x="${px(LEFT + cell * (i + 0.5))}" y="${TOP - 5}" text-anchor="middle">${i}</text>`;
  for (let i = 0; i < layers; i += every) texts += `<text x="${LEFT - 5}" y="${px(TOP + row * (i + 0.5) + 3.5)}" text-anchor="end">${i}</text>`;
  for (let i = 0; i < values.length; i++) {
    const x = px(LEFT + (i % heads) * cell), y = px(TOP + Math.floor(i / heads) * row), v = values[i];
    const [ground, ink] = v === EMPTY ? [data.null, data.ink] : data.palette[Math.round((v / 254) * (data.palette.length - 1))];
    out += `<rect x="${x}" y="${y}" width="${px(cell - 1)}" height="${px(row - 1)}" fill="${ground}"/>`;
    const share = (v / 2.54) * data.scale, told = cell >= 22 && row >= 16 && v !== EMPTY;
    // Through the cell, or in its corner where a number stands.
    const size = told ? Math.max(5, Math.min(9, row / 2 - 6, cell - 23)) : Math.min(cell, row) - 5;
    const dropped = data.dropped[i] === "1";
    if (dropped) marks += `<path d="M${px(x + 2)} ${px(y + row - 3)}l${px(size)} ${px(-size)}" stroke="${ink}" stroke-width="${told ? 1.8 : 1}"/>`;
    if (told) // rounded to its side of the limit: a cell that says 50 is not below it
      marks += `<text x="${px(x + cell - 4)}" y="${px(y + row / 2 + 3.5)}" text-anchor="end" fill="${ink}">${share > 0 && share < (dropped ? 1 : 0.5) ? "&lt;1" : Math[dropped ? "floor" : "round"](share)}</text>`;
  }
  root.querySelector(".drawing").innerHTML =
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${TOP + row * layers + 2}" font-size="10.5" ` +
    `font-family="${escape(data.font)}" style="font-variant-numeric:tabular-nums"><g fill="${data.mute}">${texts}</g>${out}${marks}` +
    `<rect class="ring" fill="none" stroke="${data.strong}" stroke-width="2.2" rx="2"/></svg>`;
}

function ring(root, [layer, head]) {
  const { cell, row } = root.g, mark = root.querySelector(".ring");
  const place = { x: LEFT + head * cell, y: TOP + layer * row, width: cell - 1, height: row - 1 };
  for (const [name, value] of Object.entries(place)) mark.setAttribute(name, px(value));
}

function under(root, event) {
  const box = root.querySelector("svg").getBoundingClientRect(), { cell, row, layers, heads } = root.g;
  const head = Math.floor((event.clientX - box.left - LEFT) / cell), layer = Math.floor((event.clientY - box.top - TOP) / row);
  return head >= 0 && head < heads && layer >= 0 && layer < layers ? [layer, head] : null;
}

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".rs-heads");
  root.data = data;
  root.tabIndex = 0;
  root.setAttribute("role", "application");
  root.setAttribute("aria-label", data.label);
  root.querySelector(".drawing").ariaHidden = "true"; // it would be read as loose numbers
  const refresh = () => { if (root.clientWidth) { draw(root, root.data); ring(root, root.data.picked); } };
  refresh();
  const pick = (place) => { root.data.picked = place; ring(root, place); setTriggerValue("picked", place); };
  root.onmousemove = (event) => {
    const found = under(root, event), tip = root.querySelector(".tip");
    tip.hidden = !found;
    if (!found) return;
    const value = root.values[found[0] * root.g.heads + found[1]];
    tip.textContent = `layer ${found[0]}, head ${found[1]}\n` +
      (value === EMPTY ? root.data.words.unknown : `${root.data.words.value} ${((value / 2.54) * root.data.scale).toFixed(1)} %`);
    const frame = root.getBoundingClientRect(), x = event.clientX - frame.left;
    tip.style.left = `${Math.max(0, Math.min(x + 14, frame.width - tip.offsetWidth))}px`;
    tip.style.top = `${event.clientY - frame.top + 16}px`;
  };
  root.onmouseleave = () => { root.querySelector(".tip").hidden = true; };
  root.onclick = (event) => { const found = under(root, event); if (found) pick(found); };
  root.onkeydown = (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [layer, head] = [root.data.picked[0] + step[0], root.data.picked[1] + step[1]];
    if (layer >= 0 && layer < root.g.layers && head >= 0 && head < root.g.heads) pick([layer, head]);
  };
  root.watch ??= new ResizeObserver(refresh);
  root.watch.observe(root);
}
