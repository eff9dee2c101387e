// The page that has all its data in itself.

import { Page } from "qkv/page.js";
import { embedded } from "qkv/store.js";

const page = new Page(embedded(), document.getElementById("qkv"));
page.open();
