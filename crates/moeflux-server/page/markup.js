// Turns Markdown, and the markup of the highlighter, into elements.
//
// Invariant: this is the only module that makes markup from text, and DOMPurify has seen all of it
// (its policy of Trusted Types is the only one of the page). Tags in an answer are shown as text,
// but for a few without attributes; a picture is shown as its text, so that no answer makes the
// browser fetch anything; a link leads to http or https and tells the other side nothing.

import { Marked } from "./vendor/marked.esm.js";
import "./vendor/purify.min.js";
import { mathRules } from "./math.js";

const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "b", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr",
    "i", "kbd", "li", "mark", "ol", "p", "pre", "s", "span", "strong", "sub", "sup", "table",
    "tbody", "td", "th", "thead", "tr", "u", "ul",
  ],
  ALLOWED_ATTR: ["align", "class", "href", "rel", "start", "target", "title"],
  ALLOWED_URI_REGEXP: /^https?:\/\//i,
  // Without this, DOMPurify holds the values of these against the pattern for addresses.
  ADD_URI_SAFE_ATTR: ["align", "rel", "start", "target"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_TRUSTED_TYPE: true,
};
const PLAIN_TAG = /^<\/?(?:b|br|code|del|em|i|kbd|mark|s|strong|sub|sup|u)\s*\/?>$/i;
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };

const renderer = {
  html: ({ text }) => (PLAIN_TAG.test(text.trim()) ? text : escaped(text)),
  image: ({ href, text }) => `<span class="picture">[picture: ${escaped(text || "no text")}, ${
    escaped(href)}]</span>`,
  checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  link({ href, title, tokens }) {
    const text = this.parser.parseInline(tokens);
    if (!/^https?:\/\//i.test(href)) return `${text} (${escaped(href)})`;
    // The address is shown on hover, because the text of a link may claim another one.
    const hint = escaped(title ? `${title} — ${href}` : href);
    return `<a href="${escaped(href)}" title="${hint}" target="_blank" rel="noopener noreferrer">${
      text}</a>`;
  },
};

const marked = new Marked({ gfm: true, breaks: true, renderer });
marked.use({ extensions: mathRules(escaped) });

function escaped(text) {
  return text.replace(/[&<>"']/g, (character) => ESCAPES[character]);
}

/** Splits Markdown into blocks (tokens of marked). */
export function lexMarkdown(text) {
  return marked.lexer(text);
}

/** The elements of such blocks. */
export function markdownElements(tokens) {
  return safeElements(marked.parser(tokens));
}

/** The elements of what the highlighter wrote. */
export function highlightedElements(html) {
  return safeElements(html);
}

function safeElements(html) {
  const holder = document.createElement("template");
  holder.innerHTML = globalThis.DOMPurify.sanitize(html, ALLOWED);
  return holder.content;
}
