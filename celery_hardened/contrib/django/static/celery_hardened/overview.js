/* Refreshes the overview in place. Without it the page is whole, and its link reads it again.

   Each section is put in place of the one with the same id, and only if it is another: what has the focus keeps it, and
   what was scrolled stays. Nothing is asked while the tab is hidden, nor while an answer is awaited. */
"use strict";

(function () {
    const page = document.getElementById("overview");
    if (!page) {
        return;
    }
    const part = document.getElementById("overview-part");
    const said = document.getElementById("overview-said");
    const trouble = document.getElementById("overview-trouble");
    const every = Number(page.dataset.every) * 1000;
    const patience = 10000;
    let timer = null;
    let awaited = false;
    let readAt = Date.now();
    let words = wordsOf(part);

    function wordsOf(root) {
        const one = root.querySelector("[data-overview]");
        return one ? one.dataset.overview : "";
    }

    function replace(fresh) {
        const focused = document.activeElement;
        const focusedId = focused && part.contains(focused) ? focused.id : "";
        const address = focused ? focused.getAttribute("href") : null;
        for (const old of Array.from(part.querySelectorAll("section[id]"))) {
            const now = fresh.querySelector("#" + CSS.escape(old.id));
            if (!now || now.outerHTML === old.outerHTML) {
                continue;
            }
            const scrolled = new Map();
            for (const box of old.querySelectorAll(".scroll[id]")) {
                scrolled.set(box.id, box.scrollLeft);
            }
            old.replaceWith(document.adoptNode(now));
            for (const [id, left] of scrolled) {
                const box = document.getElementById(id);
                if (box) {
                    box.scrollLeft = left;
                }
            }
        }
        if (focusedId) {
            // The same link may have another number by now.
            const links = Array.from(part.querySelectorAll("a[href]"));
            const again = links.find((link) => address !== null && link.getAttribute("href") === address)
                || document.getElementById(focusedId);
            if (again && document.activeElement !== again) {
                again.focus({preventScroll: true});
            }
        }
    }

    function say(text) {
        if (trouble.textContent !== text) {
            trouble.textContent = text;
        }
    }

    function failed(why) {
        const old = Math.max(0, Math.round((Date.now() - readAt) / 1000));
        // In steps, so that it is not read out every few seconds.
        const steps = old < 60 ? Math.max(5, Math.floor(old / 15) * 15) + " s" : Math.floor(old / 60) + " min";
        say(why + " What is shown is more than " + steps + " old.");
        page.classList.add("overview-stale");
    }

    async function refresh() {
        if (awaited || document.hidden) {
            return;
        }
        awaited = true;
        const limit = new AbortController();
        const late = setTimeout(() => limit.abort(), patience);
        try {
            const answer = await fetch(page.dataset.part, {
                credentials: "same-origin", cache: "no-store", redirect: "manual", signal: limit.signal,
                headers: {"X-Requested-With": "XMLHttpRequest"},
            });
            if (answer.type === "opaqueredirect" || answer.status === 403) {
                failed("You are logged out, or may not see this any more: reload the page.");
            } else if (!answer.ok) {
                failed("Could not refresh (status " + answer.status + ").");
            } else {
                const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
                if (!fresh.getElementById("overview-problems")) {
                    failed("Could not refresh (another page answered).");
                } else {
                    const news = wordsOf(fresh);
                    replace(fresh);
                    readAt = Date.now();
                    say("");
                    page.classList.remove("overview-stale");
                    if (news !== words) {
                        words = news;
                        said.textContent = news;
                    }
                }
            }
        } catch (problem) {
            failed("Could not refresh.");
        } finally {
            clearTimeout(late);
            awaited = false;
        }
    }

    function start() {
        if (timer === null) {
            timer = setInterval(refresh, every);
        }
    }

    function stop() {
        clearInterval(timer);
        timer = null;
    }

    document.addEventListener("visibilitychange", function () {
        if (document.hidden) {
            stop();
        } else {
            refresh();
            start();
        }
    });
    document.getElementById("overview-refresh").addEventListener("click", function (event) {
        event.preventDefault();
        refresh();
    });
    start();
})();
