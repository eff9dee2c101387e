// What the pages know of the browser beyond its types: every element of theirs is an HTML element, the target of an
// event is an element, and numbers may be given where they become text.

interface EventTarget {
  closest(selectors: string): any;
}

interface Element {
  arrange?: () => void;
  dataset: DOMStringMap;
  disabled?: boolean;
  hidden: any;
  offsetHeight: number;
  offsetTop: number;
  style: CSSStyleDeclaration;
  tabIndex: number;
  click(): void;
  focus(options?: FocusOptions): void;
}

interface ChildNode {
  classList: DOMTokenList;
  disabled?: boolean;
  hidden?: any;
  offsetHeight: number;
  append(...nodes: (Node | string)[]): void;
}

interface Document {
  readonly activeElement: any;
}

interface URLSearchParams {
  set(name: string, value: string | number | boolean): void;
}

interface CSSStyleDeclaration {
  setProperty(property: string, value: string | number | null, priority?: string): void;
}
