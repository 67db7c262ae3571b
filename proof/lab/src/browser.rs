//! Shows a page in a headless Chromium, and reports elements that overflow and text that is hard to read.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde::Deserialize;

use crate::LabError;

const PROGRAM: &str = "chromium-headless-shell";
const PACKAGE: &str = "chromium-headless-shell";
/// The attribute of the root element in which [`INSPECTION`] stores its findings.
const ATTRIBUTE: &str = "data-seen";

/// Runs at the end of the page. Text needs a contrast of 4.5 to its background (WCAG 2.1, 1.4.3), and a
/// height of 9 px on the screen: the text of a chart shrinks with the window.
const INSPECTION: &str = r#"
<script>(() => {
  const rgba = text => (text.match(/[\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const over = ([r, g, b, alpha = 1], below) => [r, g, b].map((c, i) => c * alpha + below[i] * (1 - alpha));
  const background = element => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      layers.push(color);
      if (color.length === 3) break;
    }
    const canvas = matchMedia('(prefers-color-scheme: dark)').matches ? [18, 18, 18] : [255, 255, 255];
    return layers.reduceRight((below, color) => color.length < 3 ? below : over(color, below), canvas);
  };
  const opacity = element => {
    let product = 1;
    for (let at = element; at; at = at.parentElement) product *= parseFloat(getComputedStyle(at).opacity);
    return product;
  };
  const scrolls = element => {
    for (let at = element.parentElement; at && at !== document.body; at = at.parentElement)
      if (['auto', 'scroll'].includes(getComputedStyle(at).overflowX)) return true;
    return false;
  };
  const seen = { is_dark: matchMedia('(prefers-color-scheme: dark)').matches, width: innerWidth,
    scroll_width: document.documentElement.scrollWidth, overflowing: [], unreadable: [] };
  const name = element => element.tagName + ' ' + (element.textContent || '').trim().slice(0, 40);
  for (const element of document.body.querySelectorAll('*')) {
    if (element.tagName === 'SCRIPT') continue;
    const box = element.getBoundingClientRect();
    if (box.right > innerWidth + 1 && !scrolls(element)) seen.overflowing.push(name(element));
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own || box.width === 0) continue;
    const style = getComputedStyle(element), is_svg = element instanceof SVGElement;
    const below = background(element), [r, g, b, alpha = 1] = rgba(is_svg ? style.fill : style.color);
    const strength = alpha * opacity(element) * (is_svg ? parseFloat(style.fillOpacity) : 1);
    const [ink, paper] = [over([r, g, b, strength], below), below].map(luminance);
    const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    const matrix = is_svg ? element.getScreenCTM() : { a: 1, b: 0 };
    const scale = Math.hypot(matrix.a, matrix.b);
    const height = parseFloat(style.fontSize) * scale;
    if (contrast < 4.5 || height < 9)
      seen.unreadable.push(`${name(element)}: contrast ${contrast.toFixed(1)}, ${height.toFixed(1)} px`);
  }
  document.documentElement.setAttribute('data-seen', JSON.stringify(seen));
})()</script>
"#;

/// The window and the preferences with which a page is shown.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Width of the window in CSS pixels.
    pub width: u32,
    /// Whether the reader prefers dark pages.
    pub is_dark: bool,
}

impl View {
    /// A phone's and a desktop's window, each light and dark.
    pub const ALL: [View; 4] = [
        View { width: 380, is_dark: false },
        View { width: 380, is_dark: true },
        View { width: 1400, is_dark: false },
        View { width: 1400, is_dark: true },
    ];
}

/// The result of a page's inspection.
#[derive(Clone, Debug, Deserialize)]
pub struct PageFindings {
    /// Whether the browser reported to the page that the reader prefers dark pages.
    pub is_dark: bool,
    /// Width of the window, in CSS pixels.
    pub width: u32,
    /// Width of the page, in CSS pixels. Above the window's width, the page scrolls sideways.
    pub scroll_width: u32,
    /// Elements that extend beyond the right edge and are not inside a box that scrolls.
    pub overflowing: Vec<String>,
    /// Elements whose text has too little contrast or is too small, with both figures.
    pub unreadable: Vec<String>,
}

impl PageFindings {
    /// The page's defects, one line each.
    pub fn problems(&self, view: View) -> Vec<String> {
        let mut problems: Vec<String> =
            self.overflowing.iter().map(|element| format!("overflows: {element}")).collect();
        problems.extend(self.unreadable.iter().map(|element| format!("unreadable: {element}")));
        if self.scroll_width > self.width {
            problems.push(format!("the page is {} px wide in a window of {}", self.scroll_width, self.width));
        }
        if self.is_dark != view.is_dark {
            problems.push("the colours are not those that the reader prefers".to_owned());
        }
        problems
    }
}

/// Shows a page in a headless browser with a temporary profile, and inspects it.
///
/// # Errors
/// The browser is not installed or ends without having shown the page.
pub fn inspect_page(html: &str, view: View) -> Result<PageFindings, LabError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let directory = std::env::temp_dir().join(format!("spillway-browser-{}-{number}", std::process::id()));
    let _ = fs::remove_dir_all(&directory); // may be left from a killed run with the same process id
    fs::create_dir(&directory).map_err(LabError::io(format!("cannot create {}", directory.display())))?;
    let seen = show(html, view, &directory);
    // If the removal fails, temporary files stay; the findings are valid.
    let _ = fs::remove_dir_all(&directory);
    seen
}

fn show(html: &str, view: View, directory: &std::path::Path) -> Result<PageFindings, LabError> {
    let page = directory.join("page.html");
    let end = html.rfind("</body>").unwrap_or(html.len());
    let inspected = format!("{}{INSPECTION}{}", &html[..end], &html[end..]);
    fs::write(&page, inspected).map_err(LabError::io(format!("cannot write {}", page.display())))?;
    // Chromium's `PreferredColorScheme`: 0 is dark, 1 is light.
    let scheme = if view.is_dark { 0 } else { 1 };
    let output = Command::new(PROGRAM)
        // As root, as in tests, the browser runs only without its sandbox. The page is our own.
        .args(["--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg(format!("--user-data-dir={}", directory.display()))
        .arg(format!("--window-size={},2000", view.width))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("file://{}", page.display()))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => LabError::MissingTool { tool: PROGRAM, package: PACKAGE },
            _ => LabError::Io { what: format!("cannot run {PROGRAM}"), source: error },
        })?;
    let document = String::from_utf8_lossy(&output.stdout);
    let findings = document.split_once(&format!("{ATTRIBUTE}=\"")).and_then(|(_, rest)| rest.split_once('"'));
    let unescaped =
        findings.map(|(text, _)| text.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">"));
    let unescaped = unescaped.map(|text| text.replace("&amp;", "&"));
    unescaped.and_then(|text| serde_json::from_str(&text).ok()).ok_or_else(|| LabError::Command {
        what: format!("{PROGRAM} on {}", page.display()),
        output: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(body: &str, view: View) -> Option<Vec<String>> {
        match inspect_page(&format!("<!doctype html><html><body>{body}</body></html>"), view) {
            Ok(seen) => Some(seen.problems(view)),
            Err(LabError::MissingTool { package, .. }) => {
                eprintln!("skipped: {package} is not installed");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn overflowing_and_unreadable_elements_are_reported() {
        let [phone, ..] = View::ALL;
        let Some(fine) = problems("<p>a &amp; b</p>", phone) else { return };
        assert_eq!(fine, Vec::<String>::new());
        let wide = problems("<div style=\"width:900px\">wide</div>", phone).unwrap();
        assert!(wide.iter().any(|problem| problem.contains("DIV wide")), "{wide:?}");
        assert!(wide.len() == 2, "the element and the width of the page should be reported: {wide:?}");
        let inside = "<div style=\"overflow-x:auto\"><div style=\"width:900px\">wide</div></div>";
        assert_eq!(problems(inside, phone).unwrap(), Vec::<String>::new());
        let faint = problems("<p style=\"color:#ccc;background:#fff\">faint</p>", phone).unwrap();
        assert!(faint.len() == 1 && faint[0].contains("P faint: contrast 1.6"), "{faint:?}");
        for faint in ["color:rgba(0,0,0,0.2)", "color:#000;opacity:0.2"] {
            let faint = problems(&format!("<p style=\"{faint};background:#fff\">faint</p>"), phone).unwrap();
            assert!(faint.len() == 1 && faint[0].contains("P faint: contrast 1."), "{faint:?}");
        }
        let chart =
            "<svg viewBox=\"0 0 1000 10\" width=\"100%\"><text font-size=\"12\" y=\"9\">tick</text></svg>";
        let small = problems(chart, phone).unwrap();
        assert!(small.len() == 1 && small[0].contains("text tick"), "{small:?}");
    }
}
