// What the scripts of components share: browser_part.py puts it before each of them.

const px = (value) => Math.round(value * 10) / 10;
const escape = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

// A text beside a point of a component, where that says something; `below`: pixels, less where it would leave the frame.
function tell(root, text, x, y, below = 16, frame = Infinity) {
  const tip = root.querySelector(".tip");
  tip.hidden = !text;
  if (!text) return;
  if (tip.textContent !== text) tip.textContent = text;
  tip.style.left = `${Math.max(0, Math.min(x + 14, root.clientWidth - tip.offsetWidth))}px`;
  tip.style.top = `${y + below + tip.offsetHeight > frame ? y - tip.offsetHeight - 8 : y + below}px`;
}
