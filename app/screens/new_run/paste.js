// Hands a pasted text over at once: by itself the field waits until it is left.

export default function () {
  document.onpaste = (event) => {
    const field = event.target.closest?.(".st-key-pasted textarea");
    if (field) setTimeout(() => { field.blur(); field.focus(); });
  };
}
