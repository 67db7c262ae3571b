// node-redis: connections that store, read and count at the same time; nothing is missing or done twice.
// Arguments: port, seconds. Prints the number of requests.
const { createClient } = require("redis");

const [port, seconds] = process.argv.slice(-2).map(Number);
const until = Date.now() + 1000 * seconds;

const fail = (error) => {
  console.error(error);
  process.exit(1);
};

const work = async (me) => {
  // One that is lost is not made anew.
  const socket = { host: "127.0.0.1", port, connectTimeout: 25000, reconnectStrategy: () => new Error("lost") };
  const client = createClient({ socket });
  client.on("error", fail);
  await client.connect();
  let turns = 0;
  while (Date.now() < until) {
    const value = "x".repeat(turns % 3000) + turns;
    const all = [client.set(`node${me}`, value), client.get(`node${me}`), client.incr(`nodes${me}`)];
    const [set, got, sum] = await Promise.all(all);
    turns += 1;
    if (set !== "OK" || got !== value || sum !== turns) throw new Error(`wrong in turn ${turns} of ${me}`);
  }
  await client.quit();
  return 3 * turns;
};

Promise.all(Array.from({ length: 8 }, (_, me) => work(me)))
  .then((counts) => console.log(counts.reduce((sum, count) => sum + count)))
  .catch(fail);
