// Lets Node import the pages' modules by the names that the pages use, such as qkv/matrix.js.

import { registerHooks } from "node:module";

const FOLDER = new URL("../../src/qkv/insight/render/web/", import.meta.url);

registerHooks({
  resolve: (name, context, next) => next(name.startsWith("qkv/") ? new URL(name.slice(4), FOLDER).href : name, context),
});
