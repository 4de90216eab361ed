// Sorting, searching, filtering, and opening the record that the address names. Without it the page can still be read.
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

  // --- search and filters: every word must occur in a row, in its section's name, or in a picture's, card's or record's
  // --- first lines; and its data set, goal and threat must be the chosen ones, where it is of one

  function facetsOf(element) {
    var holder = element.closest("[data-goal], [data-dataset]");
    if (holder) { return holder.dataset; }
    // a row of a list or a picture is of the record that it leads to
    var link = element.matches("[data-record]") ? element : element.querySelector("a[href^='#record=']");
    var name = !link ? "" : link.getAttribute("href") ? link.getAttribute("href").slice(1) : link.dataset.record;
    var record = document.getElementById(name);
    return record ? record.dataset : {};
  }

  function filterables() {
    var found = [];
    function add(element, text) {
      found.push({ element: element, text: text.toLowerCase(), facets: facetsOf(element) });
    }
    all("table.leaderboard").forEach(function (table) {
      var section = "";
      all("tbody", table).forEach(function (body) {
        if (body.className === "section") { section = body.textContent; return; }
        all("tr", body).forEach(function (row) { add(row, section + " " + row.textContent); });
      });
    });
    all("#without-result tbody tr").forEach(function (row) { add(row, row.textContent); });
    all(".group").forEach(function (group) {
      var name = group.querySelector("h3").textContent;
      all(".shot", group).forEach(function (shot) { add(shot, name + " " + shot.textContent); });
    });
    all(".card").forEach(function (card) { add(card, card.textContent); });
    all(".scoreboard tbody tr").forEach(function (row) { add(row, row.textContent); });
    all("details.record").forEach(function (record) { add(record, record.querySelector("summary").textContent); });
    return found;
  }

  function some(elements) { return elements.some(function (element) { return !element.hidden; }); }

  function hideEmpty() {
    all("table.leaderboard").forEach(function (table) {
      var title = null;
      all("tbody", table).forEach(function (body) {
        if (body.className === "section") { title = body; title.hidden = true; return; }
        if (title && some(all("tr", body))) { title.hidden = false; }
      });
      var rows = all("tbody.ranked tr, tbody.muted tr", table);
      var board = table.closest(".board");
      board.hidden = rows.length ? !some(rows) : !chosen(board.dataset);
    });
    all(".group").forEach(function (group) { group.hidden = !some(all(".shot", group)); });
    all(".scores").forEach(function (scores) { scores.hidden = !some(all("tbody tr", scores)); });
  }

  var items = [];
  var input = document.getElementById("filter");
  var choices = all("select.facet");

  // what is not of one data set, goal or threat fits them all
  function chosen(facets) {
    return choices.every(function (choice) {
      var own = facets[choice.dataset.facet];
      return choice.value === "" || own === undefined || own === choice.value;
    });
  }

  function filter() {
    var words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    var left = 0;
    items.forEach(function (item) {
      var fits = chosen(item.facets) && words.every(function (word) { return item.text.includes(word); });
      item.element.hidden = !fits;
      left += fits ? 1 : 0;
    });
    hideEmpty();
    document.getElementById("matches").textContent = left < items.length ? left + " of " + items.length : "";
  }

  function clear() {
    input.value = "";
    choices.forEach(function (choice) { choice.value = ""; });
    filter();
  }

  // --- the record that the address names, and the way back

  var cameFrom = null;

  // a mark of the scoreboard leads to what was found: its pictures are opened
  function openFinding(element) {
    var card = element.closest(".card");
    if (card.hidden) { clear(); }
    all("details.seen", element).forEach(function (part) { part.open = element !== card; });
    element.scrollIntoView();
    element.focus({ preventScroll: true });
  }

  function openNamed() {
    var record = document.getElementById(location.hash.slice(1));
    if (record && record.closest(".card")) { openFinding(record); return; }
    if (!record || !record.matches("details.record")) { return; }
    if (record.hidden) { clear(); }
    record.open = true;
    record.scrollIntoView();
    record.querySelector("summary").focus({ preventScroll: true });
  }

  function close(record) {
    record.open = false;
    if (cameFrom && cameFrom.isConnected && cameFrom.getAttribute("href") === "#" + record.id) {
      cameFrom.focus();
    } else {
      record.querySelector("summary").focus();
    }
    cameFrom = null;
  }

  all("table.leaderboard, table.scoreboard").forEach(makeSortable);
  items = filterables();
  input.addEventListener("input", filter);
  choices.forEach(function (choice) { choice.addEventListener("change", filter); });
  document.querySelector(".filter").hidden = false;
  window.addEventListener("hashchange", openNamed);
  document.addEventListener("click", function (event) {
    var link = event.target.closest("a[href^='#record='], a[href^='#defense=']");
    if (!link) { return; }
    cameFrom = link;
    // following the same link twice changes no hash, and must still lead there
    if (link.getAttribute("href") === location.hash) { event.preventDefault(); openNamed(); }
  });
  // Escape closes the open record that the focus is in and leads back; a slash leads to the search
  document.addEventListener("keydown", function (event) {
    var inside = document.activeElement;
    if (event.key === "Escape") {
      var record = inside.closest("details.record[open]");
      var found = inside.closest(".card");
      if (record) { close(record); } else if (found && cameFrom && cameFrom.isConnected) { cameFrom.focus(); } else if (inside === input || choices.includes(inside)) { clear(); }
    } else if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !inside.matches("input, select")) {
      event.preventDefault();
      input.focus();
    }
  });
  window.addEventListener("load", openNamed); // not before: the browser's own jump would take the focus away
})();
