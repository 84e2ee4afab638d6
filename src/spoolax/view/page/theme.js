// Before anything is drawn, so that a dark page never flashes.
const kept = localStorage.getItem("spoolax-theme");
const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
document.documentElement.dataset.theme = kept || (dark ? "dark" : "light");
