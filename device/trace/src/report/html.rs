//! Elements of a page, each of which escapes what it is given.

use std::fmt::Write as _;

/// Style of the page: colours for light and dark, tables that become lists on narrow screens.
const STYLE: &str = include_str!("style.css");

/// What the browser may do: show what is here.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// Text for a place between tags, or in an attribute. What is no character for HTML is shown as such.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() && c != '\n' => out.push('\u{fffd}'),
            // What turns text around is shown, not obeyed.
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                out.push('\u{fffd}')
            }
            c => out.push(c),
        }
    }
    out
}

/// A page that is being written: its sections, each with a heading and a place to link to.
pub(super) struct Page {
    title: String,
    /// Sections: place, heading.
    sections: Vec<(&'static str, &'static str)>,
    body: String,
}

impl Page {
    pub(super) fn new(title: &str) -> Self {
        Self { title: title.to_owned(), sections: Vec::new(), body: String::new() }
    }

    /// Begins a section.
    pub(super) fn section(&mut self, place: &'static str, heading: &'static str) {
        if !self.sections.is_empty() {
            self.body += "</section>\n";
        }
        self.sections.push((place, heading));
        _ = writeln!(
            self.body,
            "<section aria-labelledby=\"{place}\">\n<h2 id=\"{place}\">{}</h2>",
            escape(heading)
        );
    }

    pub(super) fn heading(&mut self, text: &str) {
        _ = writeln!(self.body, "<h3>{}</h3>", escape(text));
    }

    pub(super) fn paragraph(&mut self, text: &str) {
        _ = writeln!(self.body, "<p>{}</p>", escape(text));
    }

    /// Markup that is escaped already.
    pub(super) fn markup(&mut self, markup: &str) {
        self.body += markup;
        self.body.push('\n');
    }

    pub(super) fn table(&mut self, table: &Table) {
        self.body += &table.markup();
    }

    /// What can be folded away. `inside` is markup.
    pub(super) fn fold(&mut self, open: bool, title: &str, inside: &str) {
        self.body += &fold(open, title, inside);
    }

    /// What was written so far, as markup for inside something else.
    pub(super) fn body(self) -> String {
        self.body
    }

    /// The whole page.
    pub(super) fn finish(mut self) -> String {
        if !self.sections.is_empty() {
            self.body += "</section>\n";
        }
        let title = escape(&self.title);
        let mut contents = String::new();
        for (place, heading) in &self.sections {
            _ = writeln!(contents, "<li><a href=\"#{place}\">{}</a></li>", escape(heading));
        }
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n\
             <body>\n<header id=\"top\">\n<h1>{title}</h1>\n<nav aria-label=\"Contents\">\n<ul>\n{contents}</ul>\n</nav>\n\
             </header>\n<main>\n{}</main>\n<footer><p><a href=\"#top\">To the top</a></p></footer>\n</body>\n</html>\n",
            self.body
        )
    }
}

/// What can be folded away. `inside` is markup.
pub(super) fn fold(open: bool, title: &str, inside: &str) -> String {
    let open = if open { " open" } else { "" };
    format!("<details{open}><summary>{}</summary>\n{inside}</details>\n", escape(title))
}

/// A list of names and values; empty: nothing.
pub(super) fn pairs(pairs: &[(String, String)]) -> String {
    let mut out = String::new();
    if !pairs.is_empty() {
        out += "<dl>\n";
        for (name, value) in pairs {
            _ = writeln!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(value));
        }
        out += "</dl>\n";
    }
    out
}

/// A table.
pub(super) struct Table {
    caption: String,
    columns: Vec<&'static str>,
    rows: String,
}

impl Table {
    pub(super) fn new(caption: &str, columns: &[&'static str]) -> Self {
        Self { caption: caption.to_owned(), columns: columns.to_vec(), rows: String::new() }
    }

    /// Adds a row; its first cell is its heading. A cell is text; what follows the row is markup that spans it.
    pub(super) fn row(&mut self, class: &'static str, cells: &[String], below: &str) {
        _ = write!(self.rows, "<tr role=\"row\" class=\"{class}\">");
        for (i, (column, cell)) in self.columns.iter().zip(cells).enumerate() {
            let cell = escape(cell);
            let (element, role, scope) =
                if i == 0 { ("th", "rowheader", " scope=\"row\"") } else { ("td", "cell", "") };
            _ = write!(self.rows, "<{element} role=\"{role}\"{scope} data-label=\"{column}\">{cell}");
            if i == 0 {
                self.rows += below;
            }
            _ = write!(self.rows, "</{element}>");
        }
        self.rows += "</tr>\n";
    }

    fn markup(&self) -> String {
        let heads: String = self
            .columns
            .iter()
            .map(|column| format!("<th role=\"columnheader\" scope=\"col\">{}</th>", escape(column)))
            .collect();
        format!(
            "<table role=\"table\">\n<caption>{}</caption>\n<thead role=\"rowgroup\"><tr role=\"row\">{heads}</tr></thead>\n\
             <tbody role=\"rowgroup\">\n{}</tbody>\n</table>\n",
            escape(&self.caption),
            self.rows
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_text() {
        assert_eq!(
            escape("<a href='x'>&\"\u{202e}\0"),
            "&lt;a href=&#39;x&#39;&gt;&amp;&quot;\u{fffd}\u{fffd}"
        );
        let mut table = Table::new("<b>", &["one", "two"]);
        table.row("", &["<script>".into(), "</td>".into()], "");
        let markup = table.markup();
        assert!(
            !markup.contains("<script>") && !markup.contains("</td></td>") && !markup.contains("<b>"),
            "{markup}"
        );
        let mut page = Page::new("</title><script>");
        page.section("a", "A");
        page.heading("<i>");
        page.paragraph("<i>");
        page.fold(false, "<i>", "");
        page.markup(&pairs(&[("<i>".into(), "<i>".into())]));
        let whole = page.finish();
        assert!(!whole.contains("<i>") && !whole.contains("<script"), "{whole}");
        assert_eq!(whole.matches("<section").count(), whole.matches("</section>").count());
    }
}
