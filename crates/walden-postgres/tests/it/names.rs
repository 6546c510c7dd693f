//! Names that cannot be read from a server.

use walden_postgres::names;

#[test]
fn a_server_that_is_not_there_is_a_clear_error() {
    let chain = |text: &str| {
        let error = names::read(text).unwrap_err();
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    };
    let error = chain("host=/no/such/folder user=nobody dbname=x");
    assert!(error.contains("cannot read names from the server") && error.contains("No such file"), "{error}");
    assert!(chain("host=x nonsense=1").contains("nonsense"));
}
