/* Browsers start no worker from file://. There the search runs in a hidden frame that answers as a worker would. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.document.write(`<!doctype html><script src="${new URL(url, document.baseURI)}"><\/script>`);
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.document.close();
      this.frame.addEventListener("load", () => {
        this.ready = true;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      });
    }

    postMessage(data) {
      if (this.ready) this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
