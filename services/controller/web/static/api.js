// Swagger UI over the description of one service. A session's requests carry the token of its page, as its forms do.
"use strict";
(() => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.classList.toggle("dark-mode", dark);
  const token = document.querySelector('meta[name="csrf-token"]').content;
  const main = document.getElementById("api");
  SwaggerUIBundle({
    url: main.dataset.document,
    domNode: main,
    deepLinking: true,
    docExpansion: "list",
    filter: true,
    validatorUrl: null,
    requestInterceptor: (request) => {
      if (token && new URL(request.url, location.href).origin === location.origin) request.headers["X-CSRF-Token"] = token;
      return request;
    },
  });
})();
