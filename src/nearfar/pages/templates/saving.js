"use strict";
// Files that the page saves, and text for the clipboard.

const save = (text, file, kind) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = file;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  say(file + " saved");
};
const copy = async (text) => {
  try { await navigator.clipboard.writeText(text); } catch (error) { // not allowed inside a report
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say("Copied");
};
