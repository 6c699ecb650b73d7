// Keeps what is below the form up to date. Without it, reload the page.
"use strict";
setInterval(async () => {
  if (document.hidden) return;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("live");
    const shown = document.getElementById("live");
    // Only if something has changed, so that a selection or the focus in it stays.
    if (fresh && fresh.innerHTML !== shown.innerHTML) shown.innerHTML = fresh.innerHTML;
  } catch (problem) {
    // The server is away for a moment: the next look will tell.
  }
}, 2000);
