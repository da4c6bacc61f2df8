//! Many processes that hammer one key: direct calls, and leases of units.

use super::stretches::{Admitted, most_beyond};
use super::{calls, count};
use redis::aio::MultiplexedConnection;
use redis_cell_client::{AsyncCellCommands, Decision, Leased, Rate, Units};
use rustix::time::{ClockId, clock_gettime};
use std::env::current_exe;
use std::error::Error;
use std::io::{Read, Write, stdout};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Units a second, `max_burst + 1`, the most units that a process holds, and for how long.
const RATE: u64 = 10_000;
const AT_ONCE: u64 = 1_000;
const MOST: u64 = 100;
const HOLD: Duration = Duration::from_secs(1);

/// How long a process with leases sleeps after 64 requests. It waits for nothing else, and there are more
/// processes than cores: without these pauses, each would wait for a core longer than for the server.
const PAUSE: Duration = Duration::from_millis(10);

const DIRECT: u8 = 0;
const LEASED: u8 = 1;

/// Runs the processes, once for each way, and prints a table.
pub async fn run(
    mut connection: MultiplexedConnection,
    processes: u64,
    seconds: u64,
) -> Result<(), Box<dyn Error>> {
    println!(
        "{processes} processes, {seconds} s; a limit of {} units per second with a burst of {}; leases of at most {MOST} \
         units for {} s.\n",
        count(RATE),
        count(AT_ONCE),
        HOLD.as_secs(),
    );
    println!(
        "| way | decisions/s | admitted/s | calls/s | decisions per call | most above the limit | the bound |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|");
    let mut direct_calls = 0.0;
    for (way, name) in [(DIRECT, "direct calls"), (LEASED, "leases")] {
        let before = calls(&mut connection).await?;
        let (asked, units) = hammered(way, processes, seconds)?;
        let calls = (calls(&mut connection).await? - before) as f64;
        let above = most_beyond(RATE as f64, &units) - AT_ONCE as f64;
        let bound = if way == LEASED { (RATE * HOLD.as_secs()).min(processes * MOST) } else { 0 };
        let each_second = |number: f64| count((number / seconds as f64) as u64);
        println!(
            "| {name} | {} | {} | {} | {} | {} | {} |",
            each_second(asked as f64),
            each_second(units.len() as f64),
            each_second(calls),
            count((asked as f64 / calls) as u64),
            count(above.max(0.0) as u64),
            count(bound),
        );
        // The server and the processes read different clocks, which a unit more allows for.
        if above > bound as f64 + 1.0 {
            return Err(format!("{above} units above the limit, and the bound is {bound}").into());
        }
        if way == DIRECT {
            direct_calls = calls;
        } else {
            println!("\nLeases make 1 call where direct calls make {:.0}.", direct_calls / calls);
        }
    }
    Ok(())
}

/// Starts the processes, and gathers their requests and admissions.
fn hammered(way: u8, processes: u64, seconds: u64) -> Result<(u64, Vec<Admitted>), Box<dyn Error>> {
    let mut children: Vec<Child> = Vec::new();
    for _ in 0..processes {
        let mut command = Command::new(current_exe()?);
        command.args(["process", &way.to_string(), &seconds.to_string()]);
        children.push(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
    }
    let mut pipes = Vec::new();
    for child in &mut children {
        let mut pipe = child.stdout.take().ok_or("no pipe")?;
        // It is connected.
        pipe.read_exact(&mut [0; 8])?;
        pipes.push(pipe);
    }
    for child in &mut children {
        child.stdin.take().ok_or("no pipe")?.write_all(b"x")?;
    }
    let (mut asked, mut units) = (0, Vec::new());
    for mut pipe in pipes {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes)?;
        let (numbers, _) = bytes.as_chunks::<8>();
        let mut numbers = numbers.iter().map(|bytes| u64::from_le_bytes(*bytes));
        asked += numbers.next().ok_or("a process ended early")?;
        while let (Some(before), Some(after)) = (numbers.next(), numbers.next()) {
            units.push(Admitted { before, after });
        }
    }
    for mut child in children {
        let status = child.wait()?;
        if !status.success() {
            return Err(format!("a process failed: {status}").into());
        }
    }
    Ok((asked, units))
}

/// One of the processes: calls for units in a loop, and writes the number of its calls and the instants at
/// which it was admitted.
pub async fn hammer(
    mut connection: MultiplexedConnection,
    way: u8,
    seconds: u64,
) -> Result<(), Box<dyn Error>> {
    let limit = Rate::per_second(RATE).burst(AT_ONCE - 1);
    let leases = Leased::new(connection.clone(), limit, 10..=MOST, HOLD)?;
    write(&[0])?;
    std::io::stdin().read_exact(&mut [0])?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut asked, mut instants) = (0_u64, Vec::new());
    // The clock is read once in 64 calls. A call that has no answer in time is refused.
    while asked % 64 != 0 || Instant::now() < end {
        let before = now();
        let admitted = if way == LEASED {
            if asked % 64 == 63 {
                tokio::time::sleep(PAUSE).await;
            }
            leases
                .take("hammered:leases", Units(1))
                .await
                .is_ok_and(|decision| decision == Decision::Admitted)
        } else {
            connection
                .cl_throttle("hammered:direct", limit, Units(1))
                .await
                .is_ok_and(|answer| answer.admitted())
        };
        asked += 1;
        if admitted {
            instants.extend([before, now()]);
        }
    }
    leases.give_back().await?;
    write(&[asked])?;
    write(&instants)
}

/// Nanoseconds of a clock that is the same for all processes and never goes back.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

fn write(numbers: &[u64]) -> Result<(), Box<dyn Error>> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let mut out = stdout().lock();
    out.write_all(&bytes)?;
    Ok(out.flush()?)
}
