// The switch between the light theme, the dark one, and that of the system.
//
// theme.js applies the same choice before the first paint; it is kept under "theme" as a bare word.

import { icon } from "./dom.js";

const THEMES = [
  { name: "system", label: "Theme: as the system", icon: "system" },
  { name: "light", label: "Theme: light", icon: "sun" },
  { name: "dark", label: "Theme: dark", icon: "moon" },
];

export function connectThemeButton(button) {
  show(button);
  button.addEventListener("click", () => {
    const next = (THEMES.indexOf(current()) + 1) % THEMES.length;
    apply(THEMES[next].name);
    show(button);
  });
}

function current() {
  const name = document.documentElement.dataset.theme ?? "system";
  return THEMES.find((theme) => theme.name === name) ?? THEMES[0];
}

function apply(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem("theme", name);
  } catch {
    // The choice then holds until the page is closed.
  }
}

function show(button) {
  const theme = current();
  button.setAttribute("aria-label", theme.label);
  button.title = theme.label;
  button.replaceChildren(icon(theme.icon));
}
