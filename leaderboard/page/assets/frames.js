// A hint above each frame that is wider than the screen.
(function () {
  "use strict";

  function hint(frame) {
    var words = document.createElement("p");
    words.className = "more-beside";
    words.textContent = "wider than the screen: scroll sideways for more →";
    words.hidden = true;
    frame.before(words);
    function look() {
      var beyond = frame.scrollWidth - frame.clientWidth;
      words.hidden = beyond <= 1;
      frame.classList.toggle("has-more", frame.scrollLeft < beyond - 1);
    }
    new ResizeObserver(look).observe(frame); // also when a frame comes into sight
    frame.addEventListener("scroll", look, { passive: true });
  }

  document.querySelectorAll(".scroll").forEach(hint);
})();
