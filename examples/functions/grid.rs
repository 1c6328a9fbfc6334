//! The square of the amateur radio grid that a point of the earth lies in, such as JO59.

fn grid(lat: f64, lon: f64) -> Result<String, String> {
    if !(-90.0..=90.0).contains(&lat) || !(-180.0..=180.0).contains(&lon) {
        return Err(format!("there is no point {lat}, {lon}"));
    }
    let (across, up) = ((lon + 180.0).min(359.999), (lat + 90.0).min(179.999));
    let letter = |part: f64| (b'A' + part as u8) as char;
    Ok(format!(
        "{}{}{}{}",
        letter(across / 20.0),
        letter(up / 10.0),
        (across % 20.0) as u8 / 2,
        (up % 10.0) as u8
    ))
}
