// Browsers refuse workers on pages that were opened from a folder (file://). There the search's worker
// runs in an iframe instead: a message to it is an event in its window, and the other way round.
"use strict";

if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = `<script>
        let answer = () => {};
        window.postMessage = (data) => answer(data);
        window.importScripts = async (...urls) => {
          for (const url of urls) await new Promise((done, failed) => {
            const script = document.createElement("script");
            script.src = url; script.onload = done; script.onerror = failed;
            document.head.append(script);
          });
        };
      </script><script src="${url}"></script><script>
        answer = (data) => frameElement.worker.hear(data);
        frameElement.worker.start();
      </script>`;
      this.frame.worker = this;
      const add = () => document.body.append(this.frame);
      if (document.body) add();
      else addEventListener("DOMContentLoaded", add);
    }

    start() {
      this.ready = true;
      for (const data of this.waiting.splice(0)) this.postMessage(data);
    }

    postMessage(data) {
      if (this.ready) this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }

    hear(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
