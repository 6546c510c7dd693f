//! Feeds arbitrary bytes to the socket of `walden archive serve`: no panic, and no allocation above a
//! request's maximum size.

use walden_archive::serve::protocol::{MAX_FIELDS, Reply, Request};

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut left = data;
    if let Ok(request) = Request::read(&mut left) {
        let parts = request.data.as_os_str().len()
            + request.file.len()
            + request.repo.len()
            + request.config.as_os_str().len();
        // A header of eight bytes, and two bytes before each field.
        assert_eq!(data.len() - left.len(), 16 + parts);
        assert!(parts <= MAX_FIELDS);
    }
    let text = String::from_utf8_lossy(data).into_owned();
    let mut written = Vec::new();
    let reply = Reply::Failed { message: text.clone(), detail: text.clone(), hint: text };
    reply.write(&mut written).expect("memory takes everything");
    let fields = usize::from(u16::from_be_bytes([written[1], written[2]]));
    assert!(written.len() == 3 + fields && fields <= MAX_FIELDS);
}
