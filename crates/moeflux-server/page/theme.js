// Sets the theme before the first paint: "light", "dark", or the system's.
//
// Not a module, because modules run after the first paint. It shares `document.documentElement`'s
// attribute `data-theme` and the key "theme" of localStorage with appearance.js, and nothing else.
(() => {
  try {
    const theme = localStorage.getItem("theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // A browser that keeps nothing has the system's theme.
  }
})();
