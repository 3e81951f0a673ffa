// The routing map as one SVG: cells, letters, fallback marks, the ring of the picked unit, and the time of each layer.
// A chart library spends a second on 1,024 letters and targets; this draws them as a few paths. All text arrives
// as data and is escaped or set as text, never as markup.

const LEFT = 26, NAMES = 78, TOP = 24, GRID_SHARE = 0.74, GAP_SHARE = 0.03, RIGHT = 8, FALLEN = 30,
  CERTIFICATE = 58, NARROW = 480, TAP = 24, LEAST_TIMES = 70;

function geometry(data, width) {
  const [layers, heads] = data.shape;
  // The column of the layers' certificates takes its room from both sides, and none where there are none.
  const column = data.times.rows.some((row) => row.certificate) ? CERTIFICATE : 0;
  const fallen = data.times.rows.some((row) => row.fallen) ? FALLEN : 0;
  // In a phone's window cells are as large as a fingertip: what has no room beside them is scrolled to.
  const least = width < NARROW ? TAP : 0, row = Math.max(least, data.row_px);
  const inside = width - LEFT - RIGHT - column, beside = width * GAP_SHARE + LEAST_TIMES + fallen;
  const cell = Math.max(least, Math.min(inside * GRID_SHARE, least ? inside - beside : inside) / heads), gridRight = LEFT + cell * heads;
  const timesLeft = gridRight + column + width * GAP_SHARE;
  const across = least ? Math.max(width, Math.ceil(timesLeft + LEAST_TIMES + fallen + RIGHT)) : width;
  const g = {
    layers, heads, width: across, least, cell, row, gridRight, height: TOP + layers * row + 4,
    column, timesLeft, fallen, timesRight: across - RIGHT - fallen,
    x: (at) => LEFT + (at % heads) * cell, y: (at) => TOP + Math.floor(at / heads) * row,
    at: (row, column) => (row < layers && column < heads ? row * heads + column : null),
  };
  return data.places ? arranged(data, g, width) : g;
}

// Heads in another order than by layer, which fill the width: nothing of a layer stands beside them.
function arranged(data, g, room) {
  const { places, columns, row_names: names } = data, left = NAMES, cell = Math.max(g.least, (room - left - RIGHT) / columns);
  const cells = new Map(places.map((place, at) => [place?.join(), at])), width = Math.ceil(left + columns * cell + RIGHT);
  return {
    ...g, width, cell, row: data.row_px, left, gridRight: width - RIGHT, column: 0, height: TOP + names.length * data.row_px + 4,
    x: (at) => left + places[at][1] * cell, y: (at) => TOP + places[at][0] * data.row_px,
    at: (row, column) => cells.get(`${row},${column}`) ?? null,
  };
}

function axis(data, g) {
  const every = (count) => (count <= 16 ? 1 : 4);
  let out = "";
  if (data.places) {
    data.row_names.forEach((name, row) => { out += `<text x="0" y="${TOP + (row + 0.5) * g.row + 4}">${escape(name)}</text>`; });
    return `<g fill="${data.theme.mute}" font-size="11">${out}</g>`;
  }
  for (let head = 0; head < g.heads; head += every(g.heads))
    out += `<text x="${px(g.x(head) + g.cell / 2)}" y="${TOP - 7}" text-anchor="middle">${head}</text>`;
  for (let layer = 0; layer < g.layers; layer += every(g.layers))
    out += `<text x="${LEFT - 6}" y="${px(TOP + (layer + 0.5) * g.row + 4)}" text-anchor="end">${layer}</text>`;
  return `<g fill="${data.theme.mute}" font-size="11">${out}</g>`;
}

function cells(data, g) {
  const gap = g.heads <= 16 && g.layers <= 16 ? 4 : 1.5;
  const paths = data.fills.map(() => "");
  const letters = {}, values = {}, marks = {};
  const large = g.row >= 40, names = data.names && g.cell >= 24 ? 11 : 0;
  const parts = data.shapes.map(() => "");
  let named = "";
  data.cells.forEach((fill, at) => {
    if (data.places && !data.places[at]) return;
    const x = px(g.x(at) + gap / 2), y = px(g.y(at) + gap / 2);
    const w = px(g.cell - gap), h = px(g.row - gap - names);
    const letter = data.letters[at], glyph = data.glyphs?.[at];
    if (names) named += `<text x="${px(x + w / 2)}" y="${px(y + h + 9)}">${escape(data.names[at])}</text>`;
    // The letter of a glyph stands beside the shares, on the page's own ground.
    const side = glyph ? Math.min(large ? 16 : 10, w * 0.45) : w, ink = glyph ? data.theme.ink : data.inks[fill];
    if (glyph) {
      let from = x + side;
      glyph.slice(0, 5).forEach((share, i) => {
        const part = ((w - side) * share) / 100;
        parts[i] += `M${px(from)} ${px(y + h)}h${px(part)}v${px((-h * glyph[5]) / 100)}h${px(-part)}z`;
        from += part;
      });
    } else paths[fill] += `M${x} ${y}h${w}v${h}h${-w}z`;
    if (letter === " ") return;
    // Six characters need some 36 pixels; the hover says the value, too.
    const value = data.values && w >= 36 ? data.values[at] : "";
    const middle = px(x + side / 2), base = px(y + h / 2 + (value ? -2 : large ? 4.5 : 3.6));
    const rows = (letters[ink] ??= {}), line = (rows[base] ??= [[], ""]);
    line[0].push(middle);
    line[1] += letter;
    if (value)
      values[ink] = (values[ink] ?? "") + `<text x="${middle}" y="${px(y + h / 2 + 13)}">${escape(value)}</text>`;
    // Inside the cell: at its edge a dark mark is lost in a dark page. In a small cell it stays clear of the letter.
    const corner = large ? 8 : Math.min(5, w * 0.4), inset = large ? 2.5 : 0.5;
    const right = px(x + w - inset), top = px(y + inset), bottom = px(y + h - inset);
    if (data.marks[at] === "d") marks[ink] = (marks[ink] ?? "") + `M${right} ${top}v${px(corner)}h${px(-corner)}v${px(-corner)}z`;
    if (data.marks[at] === "e") marks[ink] = (marks[ink] ?? "") + `M${right} ${top}v${px(corner)}l${px(-corner)} ${px(-corner)}z`;
    if (data.marks[at] === "u") marks[ink] = (marks[ink] ?? "") + `M${right} ${bottom}v${px(-corner)}l${px(-corner)} ${px(corner)}z`;
  });
  let out = paths.map((path, i) => (path ? `<path fill="${data.fills[i]}" d="${path}"/>` : "")).join("");
  out += parts.map((path, i) => (path ? `<path fill="${data.shapes[i]}" d="${path}"/>` : "")).join("");
  if (named) out += `<g fill="${data.theme.mute}" font-size="9" text-anchor="middle">${named}</g>`;
  const size = large ? 13 : 10;
  for (const [ink, rows] of Object.entries(letters))
    out += `<g fill="${ink}" font-size="${size}" font-weight="650" text-anchor="middle">` + Object.entries(rows)
      .map(([y, [xs, text]]) => `<text y="${y}" x="${xs.join(" ")}">${escape(text)}</text>`).join("") + "</g>";
  for (const [ink, texts] of Object.entries(values))
    out += `<g fill="${ink}" font-size="12" text-anchor="middle">${texts}</g>`;
  for (const [ink, path] of Object.entries(marks)) out += `<path fill="${ink}" d="${path}"/>`;
  return out;
}

function times(data, g) {
  const { rows, longest, ticks } = data.times, theme = data.theme;
  const at = (ms) => px(g.timesLeft + ((g.timesRight - g.timesLeft) * ms) / longest);
  if (data.places) return "";
  const bottom = TOP + g.layers * g.row;
  // A label without room is left out, the longest time's never.
  let out = "", left = Infinity;
  for (const [ms, text] of [...ticks].reverse()) {
    out += `<path d="M${at(ms)} ${TOP}V${bottom}" stroke="${theme.line}"/>`;
    const half = 3.2 * text.length;
    if (at(ms) + half > left) continue;
    left = at(ms) - half - 4;
    out += `<text x="${at(ms)}" y="${TOP - 7}" text-anchor="middle" fill="${theme.mute}">${escape(text)}</text>`;
  }
  if (g.fallen) out += `<text x="${g.width - RIGHT}" y="${TOP - 7}" text-anchor="end" fill="${theme.mute}" font-size="10">◥■</text>`;
  for (const row of rows) {
    const top = g.y(row.layer * g.heads), thick = Math.min(20, g.row * 0.45);
    if (row.measured_ms !== null) out += `<rect x="${at(0)}" y="${px(top + (g.row - thick) / 2)}" width="${px(at(row.measured_ms) - at(0))}" ` +
      `height="${px(thick)}" rx="2" fill="${theme.bar}"/>`;
    const tick = (ms, share, color) =>
      `<path d="M${at(ms)} ${px(top + (g.row * (1 - share)) / 2)}v${px(g.row * share)}" stroke="${color}" stroke-width="2"/>`;
    if (row.planned_ms !== null) out += tick(row.planned_ms, 0.62, theme.ink);
    if (row.limit_ms !== null) out += tick(row.limit_ms, 0.98, theme.warn);
    if (g.fallen) out += `<text x="${g.width - RIGHT}" y="${px(top + g.row / 2 + 4)}" text-anchor="end" fill="${theme.mute}">` +
      `${row.fallen || "–"}</text>`;
  }
  return `<g font-size="11">${out}</g>`;
}

function certificates(data, g) {
  if (!g.column) return "";
  const right = px(g.gridRight + g.column), theme = data.theme;
  let out = `<text x="${right}" y="${TOP - 7}" text-anchor="end" fill="${theme.mute}">certified</text>`;
  for (const { layer, certificate } of data.times.rows) {
    // A bar at the left of the row, too: the number alone is far from the cells.
    if (certificate.bad) out += `<path d="M${LEFT - 2} ${g.y(layer * g.heads) + 1}v${g.row - 2}" stroke="${theme.warn}" stroke-width="3"/>`;
    out += `<text x="${right}" y="${px(g.y(layer * g.heads) + g.row / 2 + 4)}" text-anchor="end" ` +
      `${certificate.bad ? `font-weight="650" fill="${theme.warn}"` : `fill="${theme.ink}"`}>${escape(certificate.text)}</text>`;
  }
  return `<g font-size="11" style="font-variant-numeric:tabular-nums">${out}</g>`;
}

function draw(root, data, width) {
  const g = geometry(data, width), drawing = root.querySelector(".drawing");
  if (g.width > width) drawing.tabIndex = 0; // it scrolls sideways, by keys too
  else drawing.removeAttribute("tabindex");
  drawing.innerHTML =
    `<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="${escape(data.label)}" width="${g.width}" ` +
    `height="${g.height}" viewBox="0 0 ${g.width} ${g.height}" font-family="${escape(data.theme.font)}">` +
    axis(data, g) + cells(data, g) + certificates(data, g) + times(data, g) + `<path class="dim" fill="${data.theme.panel}" opacity=".8"/>` +
    `<rect class="ring" fill="none" stroke="${data.theme.ink}" stroke-width="2.2" rx="3"/></svg>`;
  root.geometry = g;
}

function ring(root, [layer, head]) {
  const g = root.geometry, mark = root.querySelector("rect.ring"), at = layer * g.heads + head;
  const here = !root.shown.places || root.shown.places[at];
  mark.setAttribute("visibility", here ? "visible" : "hidden");
  if (!here) return;
  const place = { x: g.x(at) + 0.5, y: g.y(at) + 0.5, width: g.cell - 1, height: g.row - 1 };
  for (const [name, value] of Object.entries(place)) mark.setAttribute(name, px(value));
}

// Heads that are not among the brushed ones step back.
function dim(root) {
  const { places, brushed, cells } = root.shown, g = root.geometry, kept = brushed && new Set(brushed);
  const box = (at) => (kept.has(at) || (places && !places[at]) ? "" : `M${px(g.x(at))} ${px(g.y(at))}h${px(g.cell)}v${g.row}h${px(-g.cell)}z`);
  root.querySelector(".dim").setAttribute("d", kept ? cells.map((_, at) => box(at)).join("") : "");
}

// What lies under the pointer: [layer, head], [layer, null] in the margin, or null.
function under(root, event) {
  const g = root.geometry, box = root.querySelector("svg").getBoundingClientRect();
  const x = event.clientX - box.left, left = g.left ?? LEFT, layer = Math.floor((event.clientY - box.top - TOP) / g.row);
  if (layer < 0 || x < left) return null;
  const at = g.at(layer, Math.floor((x - left) / g.cell));
  if (at !== null) return root.shown.letters[at] === " " ? null : [Math.floor(at / g.heads), at % g.heads];
  return !g.left && layer < g.layers && x >= (g.column ? g.gridRight : g.timesLeft) ? [layer, null] : null;
}

function tip(root, event) {
  const found = under(root, event);
  const lines = !found ? null : found[1] !== null
    ? root.shown.tips[found[0] * root.geometry.heads + found[1]]
    : root.shown.times.rows.find((row) => row.layer === found[0])?.tip;
  root.querySelector("svg").style.cursor = found && found[1] !== null ? "pointer" : "default";
  const frame = root.getBoundingClientRect();
  tell(root, lines, event.clientX - frame.left, event.clientY - frame.top);
}

// In a phone's window, where the panel stands far below: what it says of the tapped cell, beside the cell.
function why(root) {
  const { picked: [layer, head], tips, why } = root.shown, g = root.geometry, at = layer * g.heads + head;
  if (!g.least || !root.tapped || (root.shown.places && !root.shown.places[at])) return;
  tell(root, `${tips[at]}\n${why}`, g.x(at) - root.querySelector(".drawing").scrollLeft, g.y(at) + g.row - 8);
}

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".rs-map");
  const refresh = () => {
    const width = Math.floor(root.clientWidth);
    if (!width) return;
    if (root.version !== `${root.shown.version} ${width}`) draw(root, root.shown, width);
    root.version = `${root.shown.version} ${width}`;
    dim(root);
    ring(root, root.shown.picked);
    why(root);
  };
  root.shown = data;
  refresh();
  root.onmousemove = (event) => tip(root, event);
  root.onmouseleave = () => { root.querySelector(".tip").hidden = true; };
  root.onclick = (event) => {
    const found = under(root, event);
    if (!found || found[1] === null) return;
    ring(root, found);
    root.tapped = true;
    setTriggerValue("picked", found);
  };
  root.watch ??= new ResizeObserver(refresh);
  root.watch.observe(root);
}
