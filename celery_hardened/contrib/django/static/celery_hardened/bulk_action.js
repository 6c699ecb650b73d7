// Keeps the page of a bulk action up to date. Without it the page reloads itself.
"use strict";
(() => {
    const every = 2000;
    const parts = ["bulk-state", "bulk-progress", "bulk-buttons"];

    function show(page) {
        const state = page.getElementById("bulk-state");
        if (!state) {
            return false; // logged out: this is another page
        }
        const ended = state.dataset.ended === "yes";
        for (const id of parts) {
            const here = document.getElementById(id);
            const there = page.getElementById(id);
            // What has the focus stays, so that nobody's keyboard loses its place.
            const kept = here.contains(document.activeElement) && !ended;
            if (!kept && here.innerHTML !== there.innerHTML) {
                here.replaceChildren(...there.childNodes);
            }
        }
        return !ended;
    }

    async function look() {
        let again = true;
        try {
            const answer = await fetch(window.location.href, { credentials: "same-origin" });
            if (answer.ok) {
                again = show(new DOMParser().parseFromString(await answer.text(), "text/html"));
            }
        } catch {
            // The server is away for a moment.
        }
        if (again) {
            window.setTimeout(look, every);
        }
    }

    if (document.getElementById("bulk-state")) {
        window.setTimeout(look, every);
    }
})();
