// The search of mdBook drops what is not Latin. After it, words in Chinese are looked for in the pages in Chinese.
(() => {
  const element = (name) => document.getElementById(`mdbook-search${name}`);
  const [bar, header, results] = ['bar', 'results-header', 'results'].map(element);
  if (!results) return;
  const addresses = ['README', 'docs/choosing'].map((page) => `${path_to_root}${page}.zh-CN.html`);
  let sections;
  let shown;

  /** The sections of a page, each with its address, its heading and its text. */
  async function read(address) {
    const page = new DOMParser().parseFromString(await (await fetch(address)).text(), 'text/html');
    const found = [];
    for (const { tagName, id, textContent } of page.querySelector('main').children) {
      if (/^H[1-3]$/.test(tagName)) found.push({ href: `${address}#${id}`, title: textContent, text: '' });
      if (found.length > 0) found.at(-1).text += textContent;
    }
    return found;
  }

  async function search() {
    const query = bar.value.trim();
    if (header.innerText === shown || !/\p{Script=Han}/u.test(query)) return;
    sections ??= Promise.all(addresses.map(read)).then((pages) => pages.flat());
    const words = query.split(/\s+/);
    const found = (await sections).filter(({ text }) => words.every((word) => text.includes(word)));
    if (bar.value.trim() !== query) return;
    shown = `${found.length} search results for '${query}':`;
    header.innerText = shown;
    results.replaceChildren(...found.map(({ href, title }) => {
      const link = Object.assign(document.createElement('a'), { href, innerText: title });
      const item = document.createElement('li');
      item.append(link);
      return item;
    }));
  }

  // mdBook writes this line with each search. That of an address may be over, if the browser has kept its files.
  new MutationObserver(search).observe(header, { childList: true });
  search();
})();
