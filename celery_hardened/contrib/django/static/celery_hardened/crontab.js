// Says below the choice of a crontab what it means. django-celery-beat's own form does so by an inline script,
// which a strict policy of the site refuses.
"use strict";
(() => {
  const told = document.getElementById("readable-crontabs");
  const choice = document.getElementById("id_crontab");
  if (!told || !choice) {
    return;
  }
  const meanings = JSON.parse(told.textContent);
  const help = document.querySelector(".field-crontab .help div") || document.querySelector(".field-crontab .help");
  const row = document.querySelector(".field-crontab_translation");
  if (!help || !row) {
    return;
  }
  row.hidden = true;
  const line = document.createElement("div");
  help.append(line);
  const tell = () => {
    line.textContent = meanings[choice.value] ? `Translation: ${meanings[choice.value]}` : "";
  };
  choice.addEventListener("change", tell);
  // The button beside the choice changes it by jQuery, whose events are no events of the document.
  window.django?.jQuery(choice).on("change", tell);
  tell();
})();
