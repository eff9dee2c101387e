// @ts-check
// The entry of a stand-alone page, which contains all its data.

import { Page } from "qkv/page.js";
import { embedded } from "qkv/store.js";

const page = new Page(embedded(), document.getElementById("qkv"));
page.open();
