"""The web pages of the controller: server-rendered templates, one stylesheet, htmx for parts of pages, one stream of changes for all.

May live here: what pages show and how. May not: decisions, writes to the log (pages call the same actions as REST does).

    templating   ``page(request, template, ...)``: a whole page as an answer, with its security headers
    listing      search, filters, sort and paging of a table, from the query string and back
    live         what changed, rendered once and sent to every open page that shows it
    assets       stylesheet, scripts and fonts under addresses that name their content
    problems     errors as pages, for people
    flash        one message carried over a redirect
    history      the last hour of every device, in bounded memory
"""
