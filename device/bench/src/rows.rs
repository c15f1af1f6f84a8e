//! Published measurements: a CSV file with a row for each.
//!
//! The columns are `source,device,link,op,size_bytes,metric,value,unit,conditions`. A value is a number, or several with
//! slashes between them, where a source gives several of one run.

use std::path::Path;

use crate::Error;
use crate::scenario::number;

/// Names of the columns, in order.
pub const COLUMNS: [&str; 9] =
    ["source", "device", "link", "op", "size_bytes", "metric", "value", "unit", "conditions"];

/// One measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The file, as it was named; empty if there is none.
    pub file: String,
    /// Its line in the file, from 1.
    pub line: usize,
    /// Key of the source.
    pub source: String,
    /// The adapter.
    pub device: String,
    /// The link or the slot.
    pub link: String,
    /// The operation.
    pub op: String,
    /// Bytes of a message; `None` if the source does not say.
    pub size: Option<u64>,
    /// What was measured.
    pub metric: String,
    /// The value, or its parts. The rules of a map can't read it.
    pub values: Vec<f64>,
    /// Their unit.
    pub unit: String,
    /// Everything else.
    pub conditions: String,
    /// Why size or value are not numbers, if they are not: no rule can make a run of the row, but one may leave it out.
    pub unreadable: Option<String>,
}

impl Row {
    /// Where it stands, in words.
    pub fn place(&self) -> String {
        match self.file.as_str() {
            "" => format!("line {}", self.line),
            file => format!("{file}: line {}", self.line),
        }
    }

    /// The cells that say what was measured and how: everything but the value.
    pub fn cell(&self, column: &str) -> Option<String> {
        Some(match column {
            "source" => self.source.clone(),
            "device" => self.device.clone(),
            "link" => self.link.clone(),
            "op" => self.op.clone(),
            "size" => self.size.map_or(String::new(), |size| size.to_string()),
            "metric" => self.metric.clone(),
            "unit" => self.unit.clone(),
            "conditions" => self.conditions.clone(),
            _ => return None,
        })
    }
}

/// Reads a file of rows.
///
/// # Errors
/// The file, the line, the column and the reason.
pub fn read(path: &Path) -> Result<Vec<Row>, Error> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|why| Error::new(format!("{file}: {why}")))?;
    let rows = parse(&text).map_err(|why| why.at(&file))?;
    Ok(rows.into_iter().map(|row| Row { file: file.clone(), ..row }).collect())
}

/// Reads rows.
///
/// # Errors
/// The line, the column and the reason.
pub fn parse(text: &str) -> Result<Vec<Row>, Error> {
    let mut records = records(text)?.into_iter();
    let (line, header) = records.next().ok_or(Error::new("line 1: the file is empty"))?;
    if header != COLUMNS {
        let columns = COLUMNS.join(",");
        return Err(Error::new(format!("line {line}: the first line must name the columns: {columns}")));
    }
    records.map(|(line, cells)| row(line, cells)).collect()
}

fn row(line: usize, cells: Vec<String>) -> Result<Row, Error> {
    let count = cells.len();
    let Ok([source, device, link, op, size, metric, value, unit, conditions]) =
        <[String; 9]>::try_from(cells)
    else {
        return Err(Error::new(format!(
            "line {line}: {count} cells, but there are {} columns",
            COLUMNS.len()
        )));
    };
    let bytes = number(&size);
    let values: Option<Vec<f64>> = value
        .split('/')
        .map(|v| v.trim().parse().ok().filter(|v: &f64| v.is_finite() && *v >= 0.0))
        .collect();
    let unreadable = match (&values, bytes) {
        (None, _) => Some(format!("value {value:?} is no number, nor several with slashes between them")),
        (_, None) if !size.is_empty() => Some(format!("size_bytes {size:?} is no number")),
        _ => None,
    };
    let values = values.unwrap_or(vec![f64::NAN]);
    let file = String::new();
    Ok(Row {
        file,
        line,
        source,
        device,
        link,
        op,
        size: bytes,
        metric,
        values,
        unit,
        conditions,
        unreadable,
    })
}

/// Lines of cells; a cell in double quotes may have commas, line ends and doubled quotes.
fn records(text: &str) -> Result<Vec<(usize, Vec<String>)>, Error> {
    let mut records = Vec::new();
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let (mut line, mut begun) = (1, 1);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\n' {
            line += 1;
        }
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                cell.push('"');
            }
            '"' if quoted => quoted = false,
            '"' if cell.is_empty() => quoted = true,
            _ if quoted => cell.push(c),
            ',' => cells.push(std::mem::take(&mut cell)),
            '\r' => {}
            '\n' => {
                cells.push(std::mem::take(&mut cell));
                let record = std::mem::take(&mut cells);
                if record.iter().any(|c| !c.is_empty()) {
                    records.push((begun, record));
                }
                begun = line;
            }
            _ => cell.push(c),
        }
    }
    if quoted {
        return Err(Error::new(format!("line {begun}: a quoted cell does not end")));
    }
    cells.push(cell);
    if cells.iter().any(|c| !c.is_empty()) {
        records.push((begun, cells));
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "source,device,link,op,size_bytes,metric,value,unit,conditions\n";

    #[test]
    fn rows_have_one_value_or_several() {
        let text = format!("{HEADER}S,D,L,O,64,m,1.5,us,c\r\nS,D,\"L, \"\"x\"\"\",O,,m,7/0,Mops,\n\n");
        let rows = parse(&text).unwrap();
        assert_eq!((rows.len(), rows[0].line, rows[1].line), (2, 2, 3));
        assert_eq!((rows[0].size, rows[0].values.clone()), (Some(64), vec![1.5]));
        assert_eq!(
            (rows[1].size, rows[1].link.as_str(), rows[1].values.clone()),
            (None, "L, \"x\"", vec![7.0, 0.0])
        );
        assert_eq!((rows[0].cell("size"), rows[0].cell("value")), (Some("64".into()), None));
    }

    #[test]
    fn text_for_a_number_is_kept_for_who_needs_the_number() {
        for (cells, reason) in [("big,m,1", "size_bytes"), ("1,m,fast", "value"), ("1,m,-1", "value")] {
            let rows = parse(&format!("{HEADER}S,D,L,O,{cells},us,\n")).unwrap();
            assert!(rows[0].unreadable.as_ref().is_some_and(|why| why.contains(reason)), "{cells}: {rows:?}");
        }
        assert_eq!(parse(&format!("{HEADER}S,D,L,O,,m,1,us,\n")).unwrap()[0].unreadable, None);
    }

    #[test]
    fn errors_name_the_line() {
        for (text, line, reason) in [
            ("", "line 1", "empty"),
            ("a,b\n", "line 1", "must name the columns"),
            (&format!("{HEADER}S,D\n"), "line 2", "2 cells"),
            (&format!("{HEADER}S,\"D\n"), "line 2", "does not end"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(line) && error.contains(reason), "{text:?}: {error}");
        }
    }
}
