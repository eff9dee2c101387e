// The playground begins.

import { App } from "./app.js";

new App(document.getElementById("playground")).open();
