//! Replies that no command of the module gives are errors that show them.

use redis::Value::{self, Array, BulkString, Int, Nil};
use redis::{FromRedisValue, from_redis_value};
use redis_cell_client::{Answer, Balance, Booking, Together, TopKey};

fn ints(numbers: &[i64]) -> Value {
    Array(numbers.iter().map(|&number| Int(number)).collect())
}

fn assert_error<T: FromRedisValue + std::fmt::Debug>(value: Value, text: &str) {
    let shown = format!("{value:?}");
    let error = from_redis_value::<T>(value).expect_err(&shown).to_string();
    assert!(error.contains(text), "{shown}: {error}");
}

#[test]
fn odd_rows_are_errors() {
    let expected = "expected five or six integers of a rate limiter: ";
    for odd in [
        Nil,
        Int(1),
        BulkString(b"OK".to_vec()),
        ints(&[]),
        ints(&[0, 1, 1, -1]),
        ints(&[0, 1, 1, -1, 0, 1, 1]),
        ints(&[2, 1, 1, -1, 0]),
        ints(&[0, -1, 1, -1, 0]),
        ints(&[0, 1, -1, -1, 0]),
        ints(&[1, 1, 1, -2, 0]),
        ints(&[0, 1, 1, -1, -2]),
        ints(&[0, 1, 1, -1, 0, -1]),
        Array(vec![Int(0), Int(1), Int(1), BulkString(b"-1".to_vec()), Int(0)]),
    ] {
        assert_error::<Answer>(odd.clone(), &format!("{expected}{odd:?}"));
        assert_error::<Balance>(odd.clone(), expected);
        assert_error::<Booking>(odd, expected);
    }
    let endless: Answer = from_redis_value(ints(&[0, 1, 1, -1, -1])).unwrap();
    assert_eq!(endless.reset_after, std::time::Duration::MAX, "a total without end");
    assert_error::<Answer>(
        ints(&[0, 1, 1, 5, 5]),
        "expected an answer of a rate limiter, which has no wait: array",
    );
    assert_error::<Booking>(ints(&[0, 1, 1, -1, 5]), "expected a booking, which has a wait: array");
    assert_error::<Together<Answer>>(Array(vec![]), "expected rows of rate limiters: none");
    assert_error::<Together<Answer>>(Nil, "expected rows of rate limiters: nil");
    assert_error::<Together<Answer>>(Array(vec![ints(&[0, 1, 1, -1, 0]), Nil]), expected);
    assert_error::<TopKey>(ints(&[1, 2, 3]), "expected a key and three integers: array");
    let row = |refusals| Array(vec![BulkString(b"k".to_vec()), Int(refusals), Int(0), Int(0)]);
    assert_eq!(from_redis_value::<TopKey>(row(7)).unwrap().refusals, 7);
    assert_error::<TopKey>(row(-1), "expected a key and three integers: array");
}
