// Runs before the page is drawn, so that a chosen theme does not flash in after the other one.
(function () {
  "use strict";
  var THEMES = ["auto", "light", "dark"];
  var root = document.documentElement;

  // storage may be forbidden for pages that are opened from disk: the choice then lasts as long as the page
  function stored() {
    try { return localStorage.getItem("leakboard-theme"); } catch (error) { return null; }
  }
  function store(theme) {
    try { localStorage.setItem("leakboard-theme", theme); } catch (error) { /* see above */ }
  }

  var theme = THEMES.indexOf(stored()) > 0 ? stored() : "auto";
  function apply() {
    if (theme === "auto") { root.removeAttribute("data-theme"); } else { root.setAttribute("data-theme", theme); }
  }
  apply();

  document.addEventListener("DOMContentLoaded", function () {
    var button = document.getElementById("theme");
    function label() { button.textContent = "Theme: " + theme; }
    button.addEventListener("click", function () {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
      store(theme);
      apply();
      label();
    });
    label();
    button.hidden = false;
  });
})();
