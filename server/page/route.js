// The address of a view, such as "#/search?id=...&k=20". An address cannot contain the user's own image,
// so the state of the browser's history has the number of this image.

const listeners = [];

export const onRoute = (listener) => listeners.push(listener);

export function address(view, parameters = {}) {
  const kept = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(kept).toString();
  return `#/${view}${query && `?${query}`}`;
}

export function here() {
  const [view, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { view, parameters: Object.fromEntries(new URLSearchParams(query)), picture: history.state?.picture };
}

export function go(view, parameters = {}, { replace = false, picture } = {}) {
  const state = picture === undefined ? null : { picture };
  history[replace ? "replaceState" : "pushState"](state, "", address(view, parameters));
  tell();
}

export function tell() {
  for (const listener of listeners) listener(here());
}

// Links within the page, Back and Forward all cause this event.
addEventListener("popstate", tell);
