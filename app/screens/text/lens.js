// The prompt as text in a scrolled window: lines have one height, so that only those in sight need to be here.
// Text is set as text, never as markup.

const EDGE = 12, PAUSE_MS = 50, GUTTER = 58, MINI = 16;
const FOUND = 1, PICKED = 2, ROW = 4, LOST = 8, READ = 16, NOTHING = 255;

const percent = (value, most) => `${((100 * value) / most).toFixed(1)} %`;

function tipOf(root, cell) {
  const { data, shares } = root, first = cell * data.cell_tokens;
  const last = Math.min(data.tokens, first + data.cell_tokens) - 1;
  const lines = [`tokens ${first.toLocaleString("en")}–${last.toLocaleString("en")}`];
  const reads = shares.reads?.[cell] ?? NOTHING;
  lines.push(reads === NOTHING ? data.words.unread : `${data.words.reads} ${percent(reads, 254)}`);
  if (data.loss && data.loss.mass[cell] !== null && data.loss.mass[cell] !== undefined)
    lines.push(`${data.words.mass} ${data.loss.mass[cell]}`);
  if (data.loss && data.loss.lost[cell] !== null && data.loss.lost[cell] !== undefined)
    lines.push(`${data.words.lost} ${data.loss.lost[cell]}`);
  return lines.join("\n");
}

function colored(root, cell) {
  const { data, shares } = root, value = shares.shade[cell] ?? NOTHING;
  return value === NOTHING ? [data.null, data.ink] : data.palette[Math.round((value / 254) * (data.palette.length - 1))];
}

function lineOf(root, line) {
  const row = document.createElement("div");
  row.className = "line";
  const number = row.appendChild(document.createElement("span"));
  number.className = "number";
  number.textContent = line.token.toLocaleString("en");
  let start = line.start;
  for (const [cell, text, flags] of line.pieces) {
    const piece = row.appendChild(document.createElement("span"));
    const [ground, ink] = colored(root, cell);
    piece.textContent = text || " ";
    piece.style.background = ground;
    piece.style.color = ink;
    piece.dataset.cell = cell;
    piece.dataset.start = start;
    start += text.length;
    const reads = root.shares.reads?.[cell] ?? NOTHING;
    const dropped = reads !== NOTHING && reads < 254 * root.data.below;
    piece.className = "piece" + (dropped ? " dropped" : "") + (flags & FOUND ? " found" : "") +
      (flags & PICKED ? " picked" : "") + (flags & ROW ? " row" : "") + (flags & LOST ? " lost" : "") + (flags & READ ? " read" : "");
  }
  return row;
}

function fill(root) {
  const { data } = root, lines = root.querySelector(".lines");
  root.querySelector(".space").style.height = `${data.total * data.line_px}px`;
  lines.style.transform = `translateY(${data.window.first * data.line_px}px)`;
  lines.replaceChildren(...data.window.lines.map((line) => lineOf(root, line)));
}

// From a token to those that were read and dropped there; ends out of sight are drawn too, at their place.
function links(root) {
  const { data } = root, svg = root.querySelector(".links"), size = parseFloat(root.view.style.fontSize);
  const at = ([line, column]) => [GUTTER + (column + 0.5) * size * 0.6021, (line + 0.5) * data.line_px];
  const [x, y] = at(data.lines?.from ?? [0, 0]), bow = GUTTER + (data.width + 1) * size * 0.6021;
  const most = Math.max(...(data.lines?.to ?? []).map(([, , share]) => share), 1e-9);
  svg.innerHTML = (data.lines?.to ?? []).map(([line, column, share, lost]) => {
    const [u, v] = at([line, column]), side = Math.min(bow, Math.max(x, u) + 18 + Math.abs(v - y) * 0.25);
    return `<path d="M${x} ${y}C${side} ${y} ${side} ${v} ${u} ${v}" stroke="${lost ? data.warn : data.accent}" ` +
      `stroke-width="${1 + 4 * Math.sqrt(share / most)}" stroke-dasharray="${lost ? "5 4" : "none"}"/>`;
  }).join("");
}

// The whole prompt at a glance: its shade from top to bottom, ticks where something was found.
function mini(root) {
  const { data } = root, canvas = root.querySelector("canvas"), height = root.view.clientHeight;
  const scale = window.devicePixelRatio || 1;
  canvas.width = MINI * scale;
  canvas.height = height * scale;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  for (let y = 0; y < height; y++) {
    const line = Math.min(data.total - 1, Math.floor((y / height) * data.total));
    pen.fillStyle = colored(root, root.cellOfLine(line))[0];
    pen.fillRect(4, y, MINI - 4, 1);
  }
  for (const [lines, color] of [[data.ticks.found, data.accent], [data.ticks.read, data.accent], [data.ticks.lost, data.warn], [data.ticks.row, data.ink]])
    for (const line of lines) {
      pen.fillStyle = color;
      pen.fillRect(0, Math.floor((line / data.total) * height), MINI, 2);
    }
  seen(root);
}

function seen(root) {
  const { view, data } = root, mark = root.querySelector(".here"), height = view.clientHeight;
  const whole = Math.max(1, data.total * data.line_px);
  mark.style.top = `${(view.scrollTop / whole) * height}px`;
  mark.style.height = `${Math.max(4, (height / whole) * height)}px`;
}

// Lines in sight, and whether they are here.
function ask(root, setTriggerValue) {
  const { view, data } = root;
  const top = Math.floor(view.scrollTop / data.line_px), count = Math.ceil(view.clientHeight / data.line_px);
  const first = data.window.first, end = first + data.window.lines.length;
  const here = (first === 0 || top >= first + EDGE) && (end >= data.total || top + count <= end - EDGE);
  if (here || root.asked === top) return;
  clearTimeout(root.timer);
  root.timer = setTimeout(() => {
    root.asked = Math.floor(view.scrollTop / data.line_px);
    setTriggerValue("window", root.asked);
  }, PAUSE_MS);
}

// The character of the prompt under the pointer.
function character(piece, event) {
  const caret = document.caretRangeFromPoint?.(event.clientX, event.clientY);
  const inside = caret && piece.contains(caret.startContainer) ? caret.startOffset : 0;
  return Number(piece.dataset.start) + Math.min(inside, piece.textContent.length - 1);
}

function point(root, event) {
  const piece = event.target.closest?.(".piece"), frame = root.getBoundingClientRect();
  const words = piece && tipOf(root, Number(piece.dataset.cell));
  tell(root, words, event.clientX - frame.left, event.clientY - frame.top, 20, frame.height);
}

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".rs-lens"), view = root.querySelector(".view");
  const before = root.data;
  Object.assign(root, { data, view, asked: null });
  if (before?.shade !== data.shade || before?.reads !== data.reads)
    root.shares = { shade: data.shade && bytes(data.shade), reads: data.reads && bytes(data.reads) };
  const starts = data.cell_lines;  // first line of every 1/64 of the cells is enough for the picture
  root.cellOfLine = (line) => {
    let low = 0, high = starts.length - 1;
    while (low < high) { const middle = (low + high + 1) >> 1; if (starts[middle] <= line) low = middle; else high = middle - 1; }
    return Math.min(root.shares.shade.length - 1, low * data.cell_step);
  };
  view.style.setProperty("--line", `${data.line_px}px`);
  view.setAttribute("aria-label", data.label);
  const fit = () => {
    const room = view.clientWidth - GUTTER - 8;
    view.style.fontSize = `${Math.max(9, Math.min(13, room / (root.data.width * 0.6021)))}px`;
    links(root);
  };
  fit();
  if (!before) new ResizeObserver(fit).observe(view);
  fill(root);
  if (before?.go.nonce !== data.go.nonce && data.go.line !== null)
    view.scrollTop = Math.max(0, (data.go.line - 5) * data.line_px);
  mini(root);
  view.onscroll = () => { seen(root); ask(root, setTriggerValue); };
  root.onmousemove = (event) => point(root, event);
  root.onmouseleave = () => { root.querySelector(".tip").hidden = true; };
  view.onclick = (event) => {
    const piece = event.target.closest(".piece");
    if (piece && window.getSelection().isCollapsed) setTriggerValue("picked", [Number(piece.dataset.cell), character(piece, event)]);
  };
  view.onkeydown = (event) => {
    if (event.key !== "Enter") return;
    const top = Math.ceil(view.scrollTop / data.line_px) - data.window.first;
    const piece = root.querySelectorAll(".line")[Math.max(0, top)]?.querySelector(".piece");
    if (piece) setTriggerValue("picked", [Number(piece.dataset.cell), Number(piece.dataset.start)]);
  };
  root.querySelector("canvas").onclick = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    view.scrollTop = ((event.clientY - box.top) / box.height) * data.total * data.line_px - view.clientHeight / 2;
  };
  ask(root, setTriggerValue);
}
