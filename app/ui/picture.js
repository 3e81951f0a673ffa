// Saves a chart of the page as SVG or PNG: the layers of a Plotly chart, or the one drawing of our own ones, below its
// title and what names its axes, above its legend and its n, unit and source. Nothing that is only there for the pointer.

const TEMPORARY = ".hoverlayer, .draglayer, .zoomlayer, .selectionlayer, .menulayer, .modebar-container, .ring";
const FONT = "system-ui, sans-serif"; // of what is added: the page's own is missing where the file is opened
const MARGIN = 14, LINE = 18, SIZE = 12, LEAST_WIDTH = 420;
const clean = (text) => text.replace(/\s+/g, " ");

// An element's texts with their colours, and its swatches, in reading order; question marks left out. Entries of a
// legend stay whole, other texts may be broken between words.
function pieces(element, found = []) {
  const style = getComputedStyle(element), apart = element.matches(".rs-legend, .rs-note") && style.display === "flex";
  for (const child of element.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) {
      const words = element.closest(".rs-legend") ? [clean(child.textContent)] : clean(child.textContent).split(/(?<= )/);
      for (const word of words) if (word) found.push({ text: word, fill: style.color });
    } else if (child.nodeType === Node.ELEMENT_NODE && !child.matches(".rs-q, [hidden]")) {
      if (child.tagName === "I") found.push(swatch(child));
      else pieces(child, found);
      if (apart) found.push({ width: MARGIN });
    }
  }
  return found;
}

function swatch(element) {
  const style = getComputedStyle(element), { width, height } = element.getBoundingClientRect();
  const stops = style.backgroundImage.match(/rgba?\([^)]*\)/g) ?? [];
  return { width: width + 5, height, stops, fill: style.backgroundColor, letter: element.textContent, ink: style.color };
}

// Texts and swatches set in lines of a width, from a top: the SVG, and where it ends.
function set(parts, width, top) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${SIZE}px ${FONT}`;
  let x = MARGIN, y = top, out = "", line = null;
  const end = () => {
    if (line) out += `<text x="${line.x}" y="${y + LINE - 5}" fill="${line.fill}">${escape(line.text)}</text>`;
    line = null;
  };
  parts.forEach((part, place) => {
    const long = part.width ?? pen.measureText(part.text).width;
    if (x > MARGIN && x + long > width - MARGIN) {
      end();
      [x, y] = [MARGIN, y + LINE];
    }
    if (part.text && line?.fill === part.fill) line.text += part.text;
    else {
      end();
      if (part.text) line = { x, fill: part.fill, text: part.text };
      if (part.height) out += drawnSwatch(part, x, y, `scale-${Math.round(top)}-${place}`);
    }
    x += long;
  });
  end();
  return [out, y + (parts.length ? LINE : 0)];
}

function drawnSwatch({ width, height, stops, fill, letter, ink }, x, y, id) {
  const scale = stops.map((color, i) => `<stop offset="${i / (stops.length - 1)}" stop-color="${color}"/>`).join("");
  return (scale && `<linearGradient id="${id}">${scale}</linearGradient>`) +
    `<rect x="${x}" y="${y + (LINE - height) / 2}" width="${width - 5}" height="${height}" rx="3" ` +
    `fill="${scale ? `url(#${id})` : fill}"/>` +
    `<text x="${x + (width - 5) / 2}" y="${y + LINE - 5}" text-anchor="middle" fill="${ink}">${escape(letter)}</text>`;
}

function standalone(chart, { background, note }) {
  const layers = [...chart.querySelectorAll(".main-svg, .rs-map svg, .rs-grid svg, .rs-plot svg")];
  const card = chart.closest("[class*=st-key-card-]") ?? chart;
  const font = getComputedStyle(chart).fontFamily.replace(/"/g, "'"), ink = getComputedStyle(chart).color;
  const drawn = layers[0].getBoundingClientRect(), width = Math.max(drawn.width, LEAST_WIDTH) + 2 * MARGIN;
  const parts = layers.map((layer) => {
    const copy = layer.cloneNode(true);
    copy.querySelectorAll(TEMPORARY).forEach((part) => part.remove());
    copy.querySelector(".side")?.removeAttribute("transform"); // of a grid that was scrolled
    copy.removeAttribute("style");
    return new XMLSerializer().serializeToString(copy);
  });
  const heading = card.querySelector(".rs-h") ?? document.querySelector(".rs-title");
  const title = clean(pieces(heading).map((part) => part.text ?? "").join(""));
  const run = document.querySelector(".st-key-run-header .rs-sub");
  const words = [...card.querySelectorAll(".rs-note, .rs-legend")].filter((one) => !one.closest("[class*=st-key-foot-]"));
  const before = words.filter((one) => one.compareDocumentPosition(chart) & Node.DOCUMENT_POSITION_FOLLOWING);
  let y = MARGIN, text, out = `<text x="${MARGIN}" y="${y + 13}" font-size="15" font-weight="650" fill="${ink}">${escape(title)}</text>`;
  y += 22;
  const add = (list) => { [text, y] = set(list, width, y); out += text; };
  if (run) add(pieces(run));
  before.forEach((one) => add(pieces(one)));
  out += `<g font-family="${escape(font)}" transform="translate(${MARGIN} ${y + 4})">${parts.join("")}</g>`;
  y += drawn.height + 8;
  words.filter((one) => !before.includes(one)).forEach((one) => add(pieces(one)));
  add(note.split(/(?<= )/).map((word) => ({ text: word, fill: ink })));
  const height = y + MARGIN;
  return {
    width, height,
    text: `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ` +
      `font-family="${FONT}" font-size="${SIZE}"><title>${escape(title)}</title>` +
      `<rect width="100%" height="100%" fill="${background}"/>${out}</svg>`,
  };
}

function save(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

async function raster({ text, width, height }, scale) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: width * scale, height: height * scale });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.drawImage(image, 0, 0);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

export default function ({ data, parentElement }) {
  const root = parentElement.querySelector(".rs-picture");
  const drawn = () => {
    const charts = document.getElementsByClassName(`st-key-${data.chart}`);
    return charts.length ? standalone(charts[0], data) : null;
  };
  root.querySelector(".svg").onclick = () => {
    const picture = drawn();
    if (picture) save(new Blob([picture.text], { type: "image/svg+xml" }), `${data.name}.svg`);
  };
  root.querySelector(".png").onclick = async () => {
    const picture = drawn();
    if (picture) save(await raster(picture, 2), `${data.name}.png`);
  };
}
