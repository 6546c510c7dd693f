//! Parses connection strings and URLs (`conninfo_parse` and `conninfo_uri_parse_options` in `fe-connect.c`).

/// Returns the parameters of a connection string or URL, in their order.
pub(super) fn parse(conninfo: &str) -> Result<Vec<(String, String)>, String> {
    match conninfo.strip_prefix("postgresql://").or_else(|| conninfo.strip_prefix("postgres://")) {
        Some(rest) => parse_url(rest),
        None => parse_pairs(conninfo),
    }
}

/// Parses `name=value` pairs separated by blanks. A value may be in single quotes, and a backslash escapes
/// the next character.
fn parse_pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (name, after) = rest
            .split_once('=')
            .ok_or_else(|| format!("expected NAME=VALUE, found \"{}\"", rest.trim_end()))?;
        let name = name.trim_end();
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(format!("expected \"=\" after a parameter's name, found \"{name}\""));
        }
        let (value, after) = parse_value(after.trim_start())?;
        pairs.push((name.to_owned(), value));
        rest = after.trim_start();
    }
    Ok(pairs)
}

/// Returns a value and the remaining text.
fn parse_value(text: &str) -> Result<(String, &str), String> {
    let is_quoted = text.starts_with('\'');
    let text = text.strip_prefix('\'').unwrap_or(text);
    let (mut value, mut characters) = (String::new(), text.char_indices());
    while let Some((at, character)) = characters.next() {
        match character {
            '\'' if is_quoted => return Ok((value, &text[at + 1..])),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            _ if !is_quoted && character.is_whitespace() => return Ok((value, &text[at..])),
            _ => value.push(character),
        }
    }
    match is_quoted {
        true => Err("expected a quote at the end of a value, found none".to_owned()),
        false => Ok((value, "")),
    }
}

/// Parses `user:password@host:port,host:port/dbname?name=value&...`.
fn parse_url(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut pairs = Vec::new();
    let mut add = |name: &str, value: &str| -> Result<(), String> {
        if !value.is_empty() {
            pairs.push((name.to_owned(), decode(value)?));
        }
        Ok(())
    };
    let (before, query) = text.split_once('?').unwrap_or((text, ""));
    let (authority, database) = before.split_once('/').unwrap_or((before, ""));
    let (user, hosts) = match authority.split_once('@') {
        Some((user, hosts)) => (user, hosts),
        None => ("", authority),
    };
    let (user, password) = user.split_once(':').unwrap_or((user, ""));
    add("user", user)?;
    add("password", password)?;
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for host in hosts.split(',') {
        let (name, port) = split_host(host)?;
        names.push(name);
        ports.push(port);
    }
    if names.iter().any(|name| !name.is_empty()) {
        add("host", &names.join(","))?;
    }
    if ports.iter().any(|port| !port.is_empty()) {
        add("port", &ports.join(","))?;
    }
    add("dbname", database)?;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| format!("expected NAME=VALUE after \"?\", found \"{pair}\""))?;
        match (decode(name)?.as_str(), value) {
            // As other drivers write it.
            ("ssl", "true") => add("sslmode", "require")?,
            (name, value) => add(name, value)?,
        }
    }
    Ok(pairs)
}

/// Splits host and port; an IPv6 address is in brackets.
fn split_host(text: &str) -> Result<(&str, &str), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest
            .split_once(']')
            .ok_or_else(|| format!("expected \"]\" after an IPv6 address, found \"{text}\""))?;
        return match (after.strip_prefix(':'), after) {
            (Some(port), _) => Ok((host, port)),
            (None, "") => Ok((host, "")),
            _ => Err(format!("expected \":\" or the end after an IPv6 address, found \"{after}\"")),
        };
    }
    Ok(text.split_once(':').unwrap_or((text, "")))
}

fn decode(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        match (digit(rest.next()), digit(rest.next())) {
            (Some(high), Some(low)) if (high, low) != (0, 0) => bytes.push((high << 4 | low) as u8),
            _ => return Err(format!("expected two hexadecimal digits after each \"%\", found \"{text}\"")),
        }
    }
    String::from_utf8(bytes).map_err(|_| format!("expected UTF-8, found \"{text}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        let pairs = parse(text).unwrap();
        pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn strings_are_read_as_libpq_does() {
        assert_eq!(parsed(""), "");
        assert_eq!(parsed("host=a port = 5433"), "host=a|port=5433");
        assert_eq!(parsed(r"password='it\'s \\ so' user=b\ c"), r"password=it's \ so|user=b c");
        assert_eq!(parsed("user='' dbname=x"), "user=|dbname=x");
        for wrong in ["host", "host a=b", "password='x", "=5"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn urls_are_read_as_libpq_does() {
        assert_eq!(parsed("postgresql://"), "");
        assert_eq!(
            parsed("postgres://a:b%40@h:5433/d?sslmode=require"),
            "user=a|password=b@|host=h|port=5433|dbname=d|sslmode=require"
        );
        assert_eq!(parsed("postgresql://h1,h2:2,[::1]:3/"), "host=h1,h2,::1|port=,2,3");
        assert_eq!(parsed("postgresql:///d?host=/run/pg&ssl=true"), "dbname=d|host=/run/pg|sslmode=require");
        assert_eq!(parsed("postgresql://%2Frun%2Fpg/d"), "host=/run/pg|dbname=d");
        for wrong in ["postgresql://[::1", "postgresql://h/%zz", "postgresql://h/d?x", "postgresql://h/%00"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
