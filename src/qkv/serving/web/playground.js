// @ts-check
// The entry of the playground.

import { App } from "./app.js";

new App(document.getElementById("playground")).open();
