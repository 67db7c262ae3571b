// Gets /1 to /N on one connection: node -e SCRIPT HOST PORT N. Prints the server of each response.
const http = require("http");
const [host, port, requests] = process.argv.slice(1);
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
let local;

function get(number) {
  const request = http.get({ agent, host, port, path: `/${number}` }, (response) => {
    let body = "";
    response.on("data", (bytes) => (body += bytes));
    response.on("end", () => {
      if (response.statusCode !== 200 || body !== `/${number}`) {
        throw new Error(`${number}: ${response.statusCode} ${body}`);
      }
      console.log(response.headers["served-by"]);
      if (number < Number(requests)) get(number + 1);
      else agent.destroy();
    });
  });
  request.on("socket", (socket) => {
    const use = () => {
      local ??= socket.localPort;
      if (local !== socket.localPort) throw new Error("the connection was opened again");
    };
    socket.connecting ? socket.once("connect", use) : use();
  });
}

get(1);
