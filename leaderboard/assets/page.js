// Sorting, filtering, and opening the record that the address names. Without it the page can still be read.
(function () {
  "use strict";

  function all(selector, inside) { return Array.from((inside || document).querySelectorAll(selector)); }

  // --- sorting: within each block of rows, so that sections stay together and unranked rows below the line

  function valueOf(row, column) {
    var cell = row.cells[column];
    var raw = cell.dataset.sort;
    if (raw === "") { return { kind: 2, value: "" }; } // no value comes last, in both directions
    return cell.classList.contains("number") ? { kind: 0, value: Number(raw) } : { kind: 1, value: raw };
  }

  function compare(a, b, sign) {
    if (a.kind !== b.kind) { return a.kind - b.kind; }
    if (a.kind === 0) { return sign * (a.value - b.value); }
    return sign * a.value.localeCompare(b.value, "en", { numeric: true });
  }

  function sortRows(table, column, order) {
    all("tbody.ranked, tbody.muted", table).forEach(function (body) {
      var rows = all("tr", body);
      rows.sort(function (a, b) {
        var sign = order === "descending" ? -1 : 1;
        var decided = order === "none" ? 0 : compare(valueOf(a, column), valueOf(b, column), sign);
        return decided || a.dataset.place - b.dataset.place;
      });
      rows.forEach(function (row) { body.appendChild(row); });
    });
  }

  function makeSortable(table) {
    all("tbody tr", table).forEach(function (row, place) { row.dataset.place = place; });
    var heads = all("thead th", table);
    heads.forEach(function (head, column) {
      // the better values come first on the first click; the third brings the ranking back
      var first = head.dataset.direction === "higher" ? "descending" : "ascending";
      var orders = ["none", first, first === "ascending" ? "descending" : "ascending"];
      var button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", function () {
        var now = head.getAttribute("aria-sort") || "none";
        var next = orders[(orders.indexOf(now) + 1) % orders.length];
        heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
        if (next !== "none") { head.setAttribute("aria-sort", next); }
        sortRows(table, column, next);
      });
    });
  }

  // --- filtering: every word must occur in a row, in its section's name, or in a picture's or record's first line

  function filterables() {
    var found = [];
    all("table.leaderboard").forEach(function (table) {
      var section = "";
      all("tbody", table).forEach(function (body) {
        if (body.className === "section") { section = body.textContent; return; }
        all("tr", body).forEach(function (row) { found.push({ element: row, text: section + " " + row.textContent }); });
      });
    });
    all("#without-result tbody tr").forEach(function (row) { found.push({ element: row, text: row.textContent }); });
    all(".group").forEach(function (group) {
      var name = group.querySelector("h3").textContent;
      all(".shot", group).forEach(function (shot) { found.push({ element: shot, text: name + " " + shot.textContent }); });
    });
    all("details.record").forEach(function (record) {
      found.push({ element: record, text: record.querySelector("summary").textContent });
    });
    found.forEach(function (item) { item.text = item.text.toLowerCase(); });
    return found;
  }

  function hideEmpty() {
    all("table.leaderboard").forEach(function (table) {
      var title = null;
      all("tbody", table).forEach(function (body) {
        if (body.className === "section") { title = body; title.hidden = true; return; }
        var some = all("tr", body).some(function (row) { return !row.hidden; });
        if (title && some) { title.hidden = false; }
      });
    });
    all(".group").forEach(function (group) {
      group.hidden = !all(".shot", group).some(function (shot) { return !shot.hidden; });
    });
  }

  var items = [];
  var input = document.getElementById("filter");

  function filter() {
    var words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    var left = 0;
    items.forEach(function (item) {
      item.element.hidden = !words.every(function (word) { return item.text.includes(word); });
      left += item.element.hidden ? 0 : 1;
    });
    hideEmpty();
    document.getElementById("matches").textContent = words.length ? left + " of " + items.length : "";
  }

  // --- the record that the address names

  function openNamed() {
    var record = document.getElementById(location.hash.slice(1));
    if (!record || !record.matches("details.record")) { return; }
    if (record.hidden) { input.value = ""; filter(); }
    record.open = true;
    record.scrollIntoView();
    record.querySelector("summary").focus({ preventScroll: true });
  }

  all("table.leaderboard").forEach(makeSortable);
  items = filterables();
  input.addEventListener("input", filter);
  document.querySelector(".filter").hidden = false;
  window.addEventListener("hashchange", openNamed);
  // following the same link twice changes no hash, and must still lead there
  document.addEventListener("click", function (event) {
    var link = event.target.closest("a[href^='#record=']");
    if (link && link.getAttribute("href") === location.hash) { event.preventDefault(); openNamed(); }
  });
  window.addEventListener("load", openNamed); // not before: the browser's own jump would take the focus away
})();
