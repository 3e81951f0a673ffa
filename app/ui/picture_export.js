// Saves a chart of the page as SVG or PNG: the layers of a Plotly chart, or the one drawing of a map of heads.

const INTERACTIVE = ".hoverlayer, .draglayer, .zoomlayer, .selectionlayer, .menulayer, .modebar-container";

function standalone(chart, background) {
  const layers = [...chart.querySelectorAll(".main-svg, .rs-map svg, .rs-heads svg")];
  const { width, height } = layers[0].getBoundingClientRect();
  const parts = layers.map((layer) => {
    const copy = layer.cloneNode(true);
    copy.querySelectorAll(INTERACTIVE).forEach((part) => part.remove());
    copy.removeAttribute("style");
    return new XMLSerializer().serializeToString(copy);
  });
  const font = getComputedStyle(chart).fontFamily.replace(/"/g, "'");
  return {
    width, height,
    text: `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" ` +
      `viewBox="0 0 ${width} ${height}" font-family="${font}">` +
      `<rect width="100%" height="100%" fill="${background}"/>${parts.join("")}</svg>`,
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
    return charts.length ? standalone(charts[0], data.background) : null;
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
