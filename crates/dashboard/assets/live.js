// Appends new messages to the conversation that is shown. Without this the page is complete, and is loaded again by hand.
"use strict";

const messages = document.querySelector("#messages[data-follow]");
if (messages && "EventSource" in window) {
  const state = document.querySelector("#live-state");
  const source = new EventSource(messages.dataset.follow);

  source.addEventListener("open", () => {
    state.textContent = "Live: new messages appear here.";
  });

  source.addEventListener("error", () => {
    state.textContent =
      source.readyState === EventSource.CLOSED
        ? "No longer live. Load the page again."
        : "The connection was lost; trying again.";
  });

  source.addEventListener("message", (event) => {
    const message = JSON.parse(event.data);
    if (document.getElementById("m-" + message.id)) {
      return;
    }
    const atEnd = window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 80;
    document.querySelector("#no-messages")?.remove();
    // The server wrote this markup and escaped what the message contains.
    messages.insertAdjacentHTML("beforeend", message.html);
    if (atEnd) {
      messages.lastElementChild.scrollIntoView({ block: "end" });
    }
  });
}
