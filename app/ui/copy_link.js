// Copies the page's whole address. Where the browser refuses the clipboard, a field shows it, selected, to be copied.

export default function ({ parentElement }) {
  const root = parentElement.querySelector(".rs-copy");
  const told = root.querySelector("span"), field = root.querySelector("input");
  root.querySelector("button").onclick = async () => {
    const link = location.href;
    let copied = true;
    try {
      await navigator.clipboard.writeText(link);
    } catch {
      copied = false;
    }
    told.textContent = copied ? "Copied: the link opens this view." : "The browser refused the clipboard: copy it here.";
    field.hidden = copied;
    if (copied) return;
    field.value = link;
    field.focus();
    field.select();
  };
}
